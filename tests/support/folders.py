"""Where servers and platforms of tests keep their files: in memory, where this machine has room.

A database is some five hundred files. On a disk their making costs more than most tests do; what a
test kills is a process, never the machine, so that memory keeps what a disk would keep.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import psutil

SHARED_MEMORY: Final = Path("/dev/shm")

ROOM_BYTES: Final = 4 * 1024**3
"""Two test processes with a server and a platform each stay below a gigabyte; containers often have
64 MB there."""


def quick_folder(prefix: str) -> Path:
    """A new folder in memory where that may be, else one on a disk."""
    return _made(prefix, SHARED_MEMORY if _is_usable() else None)


def disk_folder(prefix: str) -> Path:
    """A new folder in the temporary folder, for measured times and for what is large."""
    return _made(prefix, None)


def _made(prefix: str, parent: Path | None) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    # Walkable by others: as root, Postgres runs under another account.
    folder.chmod(0o755)
    return folder


def _is_usable() -> bool:
    """Whether programs may be kept and run there, and there is room."""
    if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return False
    if os.statvfs(SHARED_MEMORY).f_flag & os.ST_NOEXEC:
        return False
    # What lies there is taken from the machine's memory.
    free = min(shutil.disk_usage(SHARED_MEMORY).free, psutil.virtual_memory().available)
    return bool(free >= ROOM_BYTES)
