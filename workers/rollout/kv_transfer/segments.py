"""Shared memory without a name: it lives while a process holds it, and dies with the last one.

    exporter   memfd -> write -> seal        path /proc/PID/fd/N
    importer   open that path -> own descriptor, the exporter may close or die

A crashed process leaves nothing behind, and nothing stands in a directory where others would find it.
Sealed memory can neither shrink nor change, so what was checked is what is read later.
"""

import fcntl
import os
import stat
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from domain.kv_ticket import KvFailure, KvRefused
from workers.rollout.kv_transfer.pages import Content

SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
"""What makes a segment safe to read for a process that does not own it."""


class Segment:
    """One sealed segment that this process holds."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size

    @classmethod
    def filled(cls, name: str, parts: Iterable[Content]) -> "Segment":
        """A new segment of these bytes. Raises KvRefused when the machine has no memory left."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        size = 0
        try:
            for part in parts:
                size += _write(descriptor, part)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        except OSError as error:
            os.close(descriptor)
            raise KvRefused(KvFailure.NO_ROOM, str(error)) from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, size)

    @classmethod
    def opened(cls, path: str, size: int) -> "Segment":
        """Another process's segment, held from now on. Raises KvRefused."""
        try:
            # Looked at first: opening, say, a pipe of that number would disturb its owner.
            if not stat.S_ISREG(Path(path).stat().st_mode):
                raise KvRefused(KvFailure.GONE, f"{path} is another file")
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise KvRefused(KvFailure.GONE, str(error)) from error
        except ValueError as error:
            raise KvRefused(KvFailure.MALFORMED, f"{path[:100]!r} is no path: {error}") from error
        try:
            _check(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, size)

    @property
    def path(self) -> str:
        """Where other processes of this machine open it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def is_open(self) -> bool:
        """Whether this process still holds it."""
        return self._descriptor >= 0

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of a range; short past the end."""
        found = bytearray()
        while len(found) < count:
            part = os.pread(self._descriptor, count - len(found), offset + len(found))
            if not part:
                break
            found += part
        return bytes(found)

    def pages(self, page_bytes: int) -> Content:
        """Everything, as whole pages."""
        data = self.read(0, self.size)
        if len(data) != self.size or self.size % page_bytes:
            raise KvRefused(KvFailure.SHORT, f"{len(data)} of {self.size} bytes")
        return np.frombuffer(data, dtype=np.uint8).reshape(-1, page_bytes)

    def close(self) -> None:
        """Let go; may be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@lru_cache(maxsize=1)
def machine() -> str:
    """Names who can open whose paths: one boot of one kernel, one space of process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _write(descriptor: int, part: Content) -> int:
    view = np.ascontiguousarray(part).data.cast("B")
    written = 0
    while written < len(view):
        written += os.write(descriptor, view[written:])
    return written


def _check(descriptor: int, size: int) -> None:
    found = os.fstat(descriptor).st_size
    if found != size:
        raise KvRefused(KvFailure.SHORT, f"{found} of {size} bytes")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise KvRefused(KvFailure.GONE, "the path is no sealed memory") from error
    if seals & SEALS != SEALS:
        raise KvRefused(KvFailure.GONE, "the memory may still change")
