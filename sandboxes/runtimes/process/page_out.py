"""Asks the kernel to move pages of a sandbox to swap: process_madvise with MADV_PAGEOUT.

Pages that several processes map stay, the zygote's for instance. Without swap anonymous memory has no
place to go, and the runtime says so in its capabilities.
"""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROCESS_MADVISE: Final = 440
"""The same number on all machines since its first kernel, 5.10."""

MADV_PAGEOUT: Final = 21
RANGES_MAX: Final = 512
"""The kernel takes 1024 in one call."""

CHUNK_BYTES: Final = 4 << 20
"""One range at most, so that a request for little does not move much."""


_MAPPING: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) rw-p .*\n(?:[A-Z]\w+:.*\n)*?Anonymous: +(\d+) kB$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class _Piece:
    base: int
    length: int
    resident: int


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def page_out(init_pid: int, bytes_: int) -> None:
    """Ask for about so many bytes of the processes in the pid namespace of this process 1."""
    left = bytes_
    for pid in _members(init_pid):
        with suppress(OSError):
            left -= _page_out_one(pid, left)
        if left <= 0:
            return


def _members(init_pid: int) -> Iterator[int]:
    """The host's numbers of the processes in the pid namespace of a sandbox's process 1."""
    with suppress(OSError):
        theirs = os.stat(f"/proc/{init_pid}/ns/pid").st_ino
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit() and os.stat(f"/proc/{name}/ns/pid").st_ino == theirs:
                    yield int(name)


def _page_out_one(pid: int, wanted: int) -> int:
    """About how many resident bytes the kernel was asked to move."""
    pidfd = os.pidfd_open(pid)
    try:
        chosen: list[_Piece] = []
        asked = 0
        for piece in _private_pieces(pid):
            if asked >= wanted:
                break
            chosen.append(piece)
            asked += piece.resident
        for first in range(0, len(chosen), RANGES_MAX):
            _advise(pidfd, chosen[first : first + RANGES_MAX])
        return asked
    finally:
        os.close(pidfd)


def _advise(pidfd: int, pieces: list[_Piece]) -> None:
    vector = (_Range * len(pieces))(*(_Range(piece.base, piece.length) for piece in pieces))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    done = libc.syscall(
        ctypes.c_long(PROCESS_MADVISE),
        ctypes.c_int(pidfd),
        vector,
        ctypes.c_size_t(len(pieces)),
        ctypes.c_int(MADV_PAGEOUT),
        ctypes.c_uint(0),
    )
    if done < 0:
        raise OSError(ctypes.get_errno(), "process_madvise")


def _private_pieces(pid: int) -> list[_Piece]:
    """Memory of a process with anonymous pages, in pieces, the fullest mappings first."""
    pieces: list[_Piece] = []
    for found in _MAPPING.finditer(Path(f"/proc/{pid}/smaps").read_text()):
        base, end, anonymous = int(found[1], 16), int(found[2], 16), int(found[3]) * 1024
        for at in range(base, end, CHUNK_BYTES):
            length = min(CHUNK_BYTES, end - at)
            pieces.append(_Piece(at, length, anonymous * length // (end - base)))
    full = [piece for piece in pieces if piece.resident]
    return sorted(full, key=lambda piece: (-piece.resident, piece.base))
