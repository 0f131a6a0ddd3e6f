"""Which pages of a sandbox's processes are moved to swap.

Pages that several processes map stay, the zygote's for instance. Without swap anonymous memory has no
place to go, and the runtime says so in its capabilities.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandboxes.runtimes.paging import RANGES_MAX, advise

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
        ranges = [(piece.base, piece.length) for piece in chosen]
        for first in range(0, len(ranges), RANGES_MAX):
            advise(pidfd, ranges[first : first + RANGES_MAX])
        return asked
    finally:
        os.close(pidfd)


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
