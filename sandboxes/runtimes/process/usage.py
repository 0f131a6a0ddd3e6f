"""Reads what a sandbox holds: memory that it shares with nobody, and its processes.

Private bytes are anonymous and swapped pages of all processes, and shared-memory pages of the one that
maps most of them: two processes may map the same ones. A fork of the zygote also maps the zygote's
anonymous pages, once for each of its processes that has not executed another program. The kernel
says how many of a process's pages others map, not who: up to as many as the zygote holds are taken
for the zygote's. That is for the pool's account. What holds a limit takes them off once, for process 1,
which is always such a fork.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandboxes.ports import SandboxStats
from sandboxes.runtimes.process.inside import Inside

_STATUS: Final = re.compile(rb"^(RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", re.MULTILINE)
_ROLLUP: Final = re.compile(rb"^(Anonymous|Swap|Shared_Dirty):\s+(\d+) kB$", re.MULTILINE)


class UsageReader:
    """Measures one sandbox. `warm_bytes` is what the zygote held when it was warm, else 0."""

    def __init__(self, inside: Inside, warm_bytes: int = 0) -> None:
        self._inside = inside
        self._warm_kb = warm_bytes // 1024

    def read(self) -> SandboxStats:
        """What is held now; zeros once the sandbox is gone."""
        if not self._warm_kb:
            return self.held()
        private = shared = pids = 0
        for name in self._inside.names():
            rollup = _figures(_ROLLUP, self._inside.read(name, "smaps_rollup"))
            inherited = min(rollup.get("Shared_Dirty", 0), self._warm_kb)
            own = rollup.get("Anonymous", 0) + rollup.get("Swap", 0)
            private += max(0, own - inherited)
            shared = max(shared, self._shared_memory(name))
            pids += 1
        return SandboxStats((private + shared) * 1024, pids)

    def held(self) -> SandboxStats:
        """The same for its limits: what children share with process 1 counts in each of them."""
        private = shared = pids = 0
        for name in self._inside.names():
            figures = _figures(_STATUS, self._inside.read(name, "status"))
            private += figures.get("RssAnon", 0) + figures.get("VmSwap", 0)
            shared = max(shared, figures.get("RssShmem", 0))
            pids += 1
        return SandboxStats((max(0, private - self._warm_kb) + shared) * 1024, pids)

    def _shared_memory(self, name: str) -> int:
        return _figures(_STATUS, self._inside.read(name, "status")).get("RssShmem", 0)


def anonymous_bytes(pid: int) -> int:
    """What one process of this machine holds by itself; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    return _figures(_STATUS, text).get("RssAnon", 0) * 1024


def _figures(pattern: re.Pattern[bytes], text: bytes) -> Mapping[str, int]:
    return {name.decode(): int(value) for name, value in pattern.findall(text)}
