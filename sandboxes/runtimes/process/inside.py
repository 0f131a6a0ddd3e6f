"""A sandbox's own /proc, held open by the host: exactly its processes, whatever their host ids are.

Handles stay with the process that they were opened for: a signal never reaches a later process that
got the same number.
"""

import os
import re
import signal
from typing import Final

FILE_BYTES_MAX: Final = 4096
"""The files read here are a third of it."""

_RESIDENT: Final = re.compile(rb"^RssAnon:\s+(\d+) kB$", re.MULTILINE)


class Inside:
    """The processes of one sandbox, by the host's process id of its process 1."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        """The host's number of process 1."""
        self._proc = os.open(f"/proc/{pid}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Forget the sandbox."""
        os.close(self._proc)

    def names(self) -> list[str]:
        """Numbers of its processes, as the inside sees them; none once it is gone."""
        try:
            return [name for name in os.listdir(self._proc) if name.isdigit()]
        except OSError:
            return []

    def read(self, name: str, file: str) -> bytes:
        """One of a process's files; empty once the process is gone."""
        try:
            fd = os.open(f"{name}/{file}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return b""
        try:
            return os.read(fd, FILE_BYTES_MAX)
        except OSError:
            return b""
        finally:
            os.close(fd)

    def resident_bytes(self) -> int:
        """Anonymous memory of its processes that is in memory; shared pages count in each."""
        texts = [self.read(name, "status") for name in self.names()]
        return sum(int(size) for text in texts for size in _RESIDENT.findall(text)) * 1024

    def states(self, name: str) -> set[bytes]:
        """State letters of all its threads; empty once the process is gone."""
        try:
            fd = os.open(f"{name}/task", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return set()
        try:
            stats = [self.read(f"{name}/task/{task}", "stat") for task in os.listdir(fd)]
        except OSError:
            return set()
        finally:
            os.close(fd)
        # The program's name stands in brackets and may hold anything.
        return {text.rpartition(b") ")[2][:1] for text in stats if text}

    def send(self, name: str, number: signal.Signals) -> None:
        """Signal one process; nothing happens to one that is gone."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return
        try:
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            return
        finally:
            os.close(fd)
