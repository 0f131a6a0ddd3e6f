"""Key files of the home: made once, readable by their owner alone, never seen half-written."""

import os
import secrets
from pathlib import Path


def make_once(path: Path, key: str) -> None:
    """Write a new key unless the file exists; of several processes the first wins.

    The file appears under its name only when it is whole and on the disk.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(key + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
