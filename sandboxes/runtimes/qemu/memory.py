"""Reads what a machine holds, and pages a paused one out.

Private bytes are anonymous and swapped pages of the mapping of guest memory: copies that this clone
made of the template's pages. Never Private_Dirty or Pss, which depend on neighbours. What the rest
of the process holds is overhead.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sandboxes.ports import SandboxStats
from sandboxes.runtimes.paging import advise

_HEADER: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+:[0-9a-f]+) (\d+) *(.*)$")
_FIGURE: Final = re.compile(rb"^(Rss|Anonymous|Swap):\s+(\d+) kB")


@dataclass(slots=True)
class Mapping:
    """One mapping of a process; sizes in bytes."""

    start: int
    end: int
    is_ram: bool
    figures: dict[bytes, int]


def read_mappings(pid: int, ram_inode: int) -> list[Mapping]:
    """All mappings of a process; none once it is gone."""
    try:
        with open(f"/proc/{pid}/smaps", "rb") as smaps:
            lines = smaps.read().splitlines()
    except OSError:
        return []
    mappings: list[Mapping] = []
    for line in lines:
        if figure := _FIGURE.match(line):
            mappings[-1].figures[figure[1]] = int(figure[2]) * 1024
        elif header := _HEADER.match(line):
            is_ram = int(header[4]) == ram_inode
            mappings.append(Mapping(int(header[1], 16), int(header[2], 16), is_ram, {}))
    return mappings


def stats_of(pid: int, ram_inode: int, pids: int) -> SandboxStats:
    """What a machine costs now; zeros once it is gone."""
    private = swapped = shared = overhead = 0
    for mapping in read_mappings(pid, ram_inode):
        figures = mapping.figures
        anonymous, swap = figures.get(b"Anonymous", 0), figures.get(b"Swap", 0)
        if mapping.is_ram:
            private += anonymous + swap
            swapped += swap
            shared += figures.get(b"Rss", 0) - anonymous
        else:
            overhead += anonymous + swap
    return SandboxStats(private, pids if private else 0, swapped, shared, overhead)


def page_out(pid: int, ram_inode: int) -> int:
    """Ask the kernel to swap a machine's private pages; bytes that left memory.

    Pages that several machines map stay. Zero where there is no swap, or we may not ask.
    """
    ranges = [one for one in read_mappings(pid, ram_inode) if one.is_ram]
    before = _resident(ranges)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return 0
    try:
        for one in ranges:
            with suppress(OSError):
                advise(pidfd, [(one.start, one.end - one.start)])
    finally:
        os.close(pidfd)
    return max(0, before - _resident(m for m in read_mappings(pid, ram_inode) if m.is_ram))


def _resident(ranges: Iterable[Mapping]) -> int:
    return sum(one.figures.get(b"Anonymous", 0) for one in ranges)
