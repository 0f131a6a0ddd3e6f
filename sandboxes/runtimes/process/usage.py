"""Reads what a sandbox holds: memory that it shares with nobody, and its processes.

Private bytes are anonymous and swapped pages of all processes, and shared-memory pages of the one that
maps most of them: two processes may map the same ones. A fork of the zygote also maps the zygote's
anonymous pages, once for each of its processes that has not executed another program. The kernel
says how many of a process's pages others map, not who: up to as many as the zygote holds are taken
for the zygote's. That is for the pool's account, which counts what is shared apart. What holds a limit
takes them off once, for process 1, which is always such a fork; before anything is killed for it, pages
that its processes share are counted once.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sandboxes.ports import SandboxStats
from sandboxes.runtimes.process.inside import Inside

_STATUS: Final = re.compile(rb"^(RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", re.MULTILINE)
_ROLLUP: Final = re.compile(rb"^(Shared_Dirty|Pss_Anon|SwapPss):\s+(\d+) kB$", re.MULTILINE)

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

TIMES: Final = slice(11, 15)
"""Behind the program's name: user and system time, its own and of children that it has waited for."""

LOOK_EVERY: Final = 30
"""Asking what is shared costs the kernel a walk over all pages, ten times as much as the rest. It only
shrinks, as pages are written to: until the next look a process counts too little by that much."""


class UsageReader:
    """Measures one sandbox. `warm_bytes` is what the zygote held when it was warm, else 0."""

    def __init__(self, inside: Inside, warm_bytes: int = 0) -> None:
        self._inside = inside
        self._warm_kb = warm_bytes // 1024
        self._inherited: dict[str, int] = {}
        """Per process, what it shared with the zygote when that was last looked at."""
        self._reads = 0

    def read(self) -> SandboxStats:
        """What is held now; zeros once the sandbox is gone."""
        if not self._warm_kb:
            return self.held()
        private = swapped = mapped = warm = 0
        names = self._inside.names()
        self._forget(names)
        for name in names:
            figures = _figures(_STATUS, self._inside.read(name, "status"))
            swap, inherited = figures.get("VmSwap", 0), self._shared_with_zygote(name)
            own = max(0, figures.get("RssAnon", 0) + swap - inherited)
            private += own
            swapped += min(swap, own)
            mapped = max(mapped, figures.get("RssShmem", 0))
            warm = max(warm, inherited)
        return _stats(private + mapped, len(names), swapped, warm)

    def held(self) -> SandboxStats:
        """The same for its limits: what children share with process 1 counts in each of them."""
        private = swapped = mapped = pids = 0
        for name in self._inside.names():
            figures = _figures(_STATUS, self._inside.read(name, "status"))
            private += figures.get("RssAnon", 0) + figures.get("VmSwap", 0)
            swapped += figures.get("VmSwap", 0)
            mapped = max(mapped, figures.get("RssShmem", 0))
            pids += 1
        private = max(0, private - self._warm_kb)
        return _stats(private + mapped, pids, min(swapped, private), 0)

    def measured(self) -> SandboxStats:
        """What is held now, and the CPU of all processes so far."""
        ticks = sum(_ticks(self._inside.read(name, "stat")) for name in self._inside.names())
        return replace(self.read(), cpu_s=ticks / TICKS_PER_S)

    def held_once(self) -> int:
        """Private bytes for its limits, a page that several of its processes map counted once.

        As dear as asking what is shared: asked where `held` is above the limit, which a dozen forks of a
        warm interpreter are without holding much. Of the zygote's pages each process has its share.
        """
        private = mapped = 0
        for name in self._inside.names():
            figures = _figures(_ROLLUP, self._inside.read(name, "smaps_rollup"))
            status = _figures(_STATUS, self._inside.read(name, "status"))
            whole = status.get("RssAnon", 0), status.get("VmSwap", 0)
            private += figures.get("Pss_Anon", whole[0]) + figures.get("SwapPss", whole[1])
            mapped = max(mapped, status.get("RssShmem", 0))
        return (private + mapped) * 1024

    def _forget(self, names: list[str]) -> None:
        self._reads += 1
        if self._reads % LOOK_EVERY == 0:
            self._inherited.clear()
        self._inherited = {name: self._inherited[name] for name in names if name in self._inherited}

    def _shared_with_zygote(self, name: str) -> int:
        if name not in self._inherited:
            rollup = _figures(_ROLLUP, self._inside.read(name, "smaps_rollup"))
            self._inherited[name] = min(rollup.get("Shared_Dirty", 0), self._warm_kb)
        return self._inherited[name]


def anonymous_bytes(pid: int) -> int:
    """What one process of this machine holds by itself; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    return _figures(_STATUS, text).get("RssAnon", 0) * 1024


def _ticks(stat: bytes) -> int:
    """CPU time of one process; 0 once it is gone. Its name stands in brackets and may hold anything."""
    return sum(int(field) for field in stat.rpartition(b") ")[2].split()[TIMES])


def _stats(private_kb: int, pids: int, swapped_kb: int, shared_kb: int) -> SandboxStats:
    return SandboxStats(private_kb * 1024, pids, swapped_kb * 1024, shared_kb * 1024)


def _figures(pattern: re.Pattern[bytes], text: bytes) -> Mapping[str, int]:
    return {name.decode(): int(value) for name, value in pattern.findall(text)}
