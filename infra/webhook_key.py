"""The installation's key, from which the secrets of webhooks are derived.

`VENUS_WEBHOOK_KEY`, or a file of VENUS_HOME that is made once. Installations whose processes do not
share a home set the variable.
"""

import os
import secrets
from pathlib import Path
from typing import Final

from infra.settings import Settings

KEY_FILE: Final = "webhook.key"


def installation_key(settings: Settings) -> bytes:
    """The key; made at the first call of the first process."""
    if settings.webhooks.key:
        return settings.webhooks.key.encode()
    path = settings.home / KEY_FILE
    if not path.exists():
        _make(path)
    return path.read_bytes().strip()


def _make(path: Path) -> None:
    """Write a new key; the first of two processes wins, and nobody ever reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
