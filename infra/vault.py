"""Secrets at rest: AES-256-GCM under keys of the installation, bound to the place they belong to.

A sealed value opens only under the context that it was sealed for, so that a row that is copied to
another project or name opens nowhere. Keys come from VENUS_SECRET_KEY, else from a file of the home,
which `venus up` makes once. The first key seals; older ones behind it still open what they sealed.
"""

import base64
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from domain.errors import SecretUnavailable
from infra.key_files import make_once
from infra.settings import SECRET_KEY_BYTES, Settings, secret_key

KEY_FILE: Final = "secret.key"
"""In the home, mode 0600."""

FORM: Final = b"\x01"
"""First byte of a sealed value: form 1 is key id, nonce, ciphertext with its tag."""

KEY_ID_BYTES: Final = 8
"""Of the key's sha256: names the key among a few, and tells nothing about it."""

NONCE_BYTES: Final = 12
"""What GCM takes; drawn at random for each value, far below 2**32 values under one key."""


class Vault:
    """Seals and opens values; without a key both are refused with what to do."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self._ciphers: Mapping[bytes, AESGCM] = {_key_id(key): AESGCM(key) for key in keys}

    @classmethod
    def of(cls, settings: Settings) -> "Vault":
        """The vault of an installation. Raises SecretUnavailable for a key file that is none."""
        return cls(settings.secret_keys or _keys_of_file(settings.home / KEY_FILE))

    @property
    def has_key(self) -> bool:
        """Whether anything can be sealed or opened."""
        return bool(self._ciphers)

    def seal(self, value: str, context: str) -> bytes:
        """The value for storage. Raises SecretUnavailable."""
        if not self._ciphers:
            raise SecretUnavailable("no key for secrets: set VENUS_SECRET_KEY")
        key_id, cipher = next(iter(self._ciphers.items()))
        nonce = os.urandom(NONCE_BYTES)
        return FORM + key_id + nonce + cipher.encrypt(nonce, value.encode(), context.encode())

    def open(self, sealed: bytes, context: str) -> str:
        """The value again. Raises SecretUnavailable."""
        head, body = sealed[: 1 + KEY_ID_BYTES], sealed[1 + KEY_ID_BYTES :]
        cipher = self._ciphers.get(head[1:])
        if head[:1] != FORM or cipher is None:
            raise SecretUnavailable("sealed under a key that this process has not")
        try:
            nonce, data = body[:NONCE_BYTES], body[NONCE_BYTES:]
            return cipher.decrypt(nonce, data, context.encode()).decode()
        except (InvalidTag, ValueError):
            raise SecretUnavailable("the stored value is damaged or not its own") from None


def secret_context(project_id: str, name: str) -> str:
    """Where a secret belongs."""
    return f"{project_id}/{name}"


def variables_context(project_id: str, group_id: str) -> str:
    """Where variables of sandboxes belong: the project's fork. No name of a secret holds a slash."""
    return f"{project_id}/sandboxes/{group_id}"


def make_key_file(home: Path) -> Path:
    """The home's key, made once and never written over."""
    path = home / KEY_FILE
    make_once(path, base64.urlsafe_b64encode(secrets.token_bytes(SECRET_KEY_BYTES)).decode())
    return path


def _keys_of_file(path: Path) -> tuple[bytes, ...]:
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretUnavailable(f"{path} cannot be read: {type(error).__name__}") from error
    try:
        return tuple(secret_key(line) for line in text.split())
    except ValueError as error:
        raise SecretUnavailable(f"{path} holds no usable key: {error}") from None


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:KEY_ID_BYTES]
