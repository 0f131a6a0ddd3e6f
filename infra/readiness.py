"""How a process tells its supervisor that it serves: it writes its pid into a file named for it.

The supervisor names the file in `VENUS_READY_FILE`; without a supervisor nothing happens. A process
that can be asked over its own protocol (Postgres, Valkey, the API) is asked instead.
"""

import os
from pathlib import Path
from typing import Final

READY_VARIABLE: Final = "VENUS_READY_FILE"


def mark_ready() -> None:
    """Say that this process serves. Call it from the process that the supervisor started."""
    named = os.environ.get(READY_VARIABLE, "")
    if named:
        path = Path(named)
        waiting = path.with_name(f"{path.name}.{os.getpid()}")
        waiting.write_text(str(os.getpid()))
        os.replace(waiting, path)


def is_marked_ready(path: Path, pid: int) -> bool:
    """Whether the process with this pid has called `mark_ready` with this file."""
    try:
        return path.read_text().strip() == str(pid)
    except FileNotFoundError:
        return False
