"""The installation's key, from which the secrets of webhooks are derived.

`VENUS_WEBHOOK_KEY`, or a file of VENUS_HOME that is made once. Installations whose processes do not
share a home set the variable.
"""

import secrets
from typing import Final

from infra.key_files import make_once
from infra.settings import Settings

KEY_FILE: Final = "webhook.key"


def installation_key(settings: Settings) -> bytes:
    """The key; made at the first call of the first process."""
    if settings.webhooks.key:
        return settings.webhooks.key.encode()
    path = settings.home / KEY_FILE
    make_once(path, secrets.token_urlsafe(32))
    return path.read_bytes().strip()
