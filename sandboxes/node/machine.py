"""What the kernel says of this machine's memory: capacity, use, swap, pressure.

The capacity is what an operator names; without that the memory limit of this process's control group,
where it has one below the machine's memory, else the machine's memory. Of a named capacity all is the
pool's; of a found one everything that others use is taken off at each sample.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MEMINFO: Final = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
_PRESSURE: Final = re.compile(r"^some avg10=([\d.]+)", re.MULTILINE)
_INACTIVE: Final = re.compile(r"^(?:total_)?inactive_file (\d+)$", re.MULTILINE)

GROUP_FILES: Final = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""Limit, use and details, of version 2 and of version 1. Inside a container its group is the root."""


@dataclass(frozen=True, slots=True)
class MachineUse:
    """One look. `used_bytes` is what cannot be had: everybody's, ours included."""

    used_bytes: int
    swap_free_bytes: int
    pressure: float | None
    """Share of the last 10 s in which some task waited for memory; None where it cannot be read."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Reads `/proc` and the control group's files; both folders are arguments for tests."""

    proc: Path = Path("/proc")
    groups: Path = Path("/sys/fs/cgroup")

    def capacity_bytes(self) -> int:
        """The control group's limit or the machine's memory, whichever is less."""
        total = self._meminfo()["MemTotal"]
        found = self._group()
        return total if found is None else min(total, found[0])

    def look(self) -> MachineUse:
        """Use, swap and pressure now."""
        memory = self._meminfo()
        used = memory["MemTotal"] - memory.get("MemAvailable", memory["MemFree"])
        found = self._group()
        if found is not None and found[0] < memory["MemTotal"]:
            used = found[1]
        return MachineUse(used, memory.get("SwapFree", 0), self._pressure())

    def _meminfo(self) -> dict[str, int]:
        text = (self.proc / "meminfo").read_text()
        return {name: int(size) * 1024 for name, size in _MEMINFO.findall(text)}

    def _group(self) -> tuple[int, int] | None:
        """Limit, and use that no reclaim of file pages gives back; None without a limit."""
        for limit_name, use_name, stat_name in GROUP_FILES:
            limit, use = _text(self.groups / limit_name), _text(self.groups / use_name)
            if not limit.isdigit() or not use.isdigit():
                continue
            inactive = _INACTIVE.search(_text(self.groups / stat_name))
            held = int(use) - (int(inactive[1]) if inactive else 0)
            return int(limit), max(0, held)
        return None

    def _pressure(self) -> float | None:
        found = _PRESSURE.search(_text(self.proc / "pressure" / "memory"))
        return None if found is None else float(found[1]) / 100


def cores() -> float:
    """Processors that this process may use."""
    return float(len(os.sched_getaffinity(0)))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
