"""API keys: `vrl_<random>`; only a prefix and a sha256 are stored, the secret is shown once."""

import hashlib
import secrets
from typing import Final

KEY_PREFIX: Final = "vrl_"

SHOWN_PREFIX_LENGTH: Final = 12
"""Of the secret, kept so that a person recognises the key in a list."""


def new_secret() -> str:
    """A new key; 192 random bits, so that a plain sha256 of it cannot be guessed."""
    return KEY_PREFIX + secrets.token_urlsafe(24)


def secret_hash(secret: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()


def shown_prefix(secret: str) -> str:
    """What a list shows of a key."""
    return secret[:SHOWN_PREFIX_LENGTH]
