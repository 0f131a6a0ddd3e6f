"""Reads what a sandbox holds: memory that it shares with nobody, and its processes.

The sandbox's own /proc lists exactly its processes; the host keeps a descriptor of it. Private
bytes are anonymous and swapped pages of all processes, and shared-memory pages of the one that maps
most of them: two processes may map the same ones.
"""

import os
import re
from typing import Final

from sandboxes.ports import SandboxStats

_FIGURES: Final = re.compile(rb"^(RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", re.MULTILINE)
STATUS_BYTES_MAX: Final = 4096
"""A status file is a third of it."""


class UsageReader:
    """Measures one sandbox by the host's process id of its process 1."""

    def __init__(self, pid: int) -> None:
        self._proc = os.open(f"/proc/{pid}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def read(self) -> SandboxStats:
        """What is held now; zeros once the sandbox is gone."""
        private = shared = pids = 0
        for name in self._names():
            figures = dict(_FIGURES.findall(self._status(name)))
            private += int(figures.get(b"RssAnon", 0)) + int(figures.get(b"VmSwap", 0))
            shared = max(shared, int(figures.get(b"RssShmem", 0)))
            pids += 1
        return SandboxStats((private + shared) * 1024, pids)

    def close(self) -> None:
        """Forget the sandbox."""
        os.close(self._proc)

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._proc) if name.isdigit()]
        except OSError:
            return []

    def _status(self, name: str) -> bytes:
        try:
            fd = os.open(f"{name}/status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return b""
        try:
            return os.read(fd, STATUS_BYTES_MAX)
        except OSError:
            return b""
        finally:
            os.close(fd)
