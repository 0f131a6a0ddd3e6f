"""Asks the kernel to move pages of a process to swap: process_madvise with MADV_PAGEOUT.

Pages that several processes map stay. Without swap anonymous memory has no place to go.
"""

import ctypes
from collections.abc import Sequence
from typing import Final

PROCESS_MADVISE: Final = 440
"""The same number on all machines since its first kernel, 5.10."""

MADV_PAGEOUT: Final = 21

RANGES_MAX: Final = 512
"""The kernel takes 1024 in one call."""


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def advise(pidfd: int, ranges: Sequence[tuple[int, int]]) -> None:
    """Ask for these ranges (base, length), RANGES_MAX at most. Raises OSError."""
    vector = (_Range * len(ranges))(*(_Range(base, length) for base, length in ranges))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    done = libc.syscall(
        ctypes.c_long(PROCESS_MADVISE),
        ctypes.c_int(pidfd),
        vector,
        ctypes.c_size_t(len(ranges)),
        ctypes.c_int(MADV_PAGEOUT),
        ctypes.c_uint(0),
    )
    if done < 0:
        raise OSError(ctypes.get_errno(), "process_madvise")
