"""Mutual proof of leader and host over fresh nonces (`protocol.md` section 2).

The keeper stores sha256(host key) in its lease row at the claim and gives the key to the host over a
pipe. The leader's key stands in `leadership`. Both sides then prove knowledge without sending a key.
"""

import hashlib
import hmac
import os
from typing import Final

NONCE_BYTES: Final = 32
"""Fresh per connection; long enough never to repeat."""


def fresh_nonce() -> bytes:
    """A nonce, or a new key, from the system's generator."""
    return os.urandom(NONCE_BYTES)


def key_sha(key: bytes) -> bytes:
    """What the lease row stores of a host key; also the HMAC secret, so that both sides hold it."""
    return hashlib.sha256(key).digest()


def proof(secret: bytes, *parts: bytes | str | int) -> bytes:
    """HMAC-SHA256 over length-prefixed parts."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        mac.update(len(raw).to_bytes(4, "big") + raw)
    return mac.digest()


def same(left: bytes, right: bytes) -> bool:
    """Comparison in constant time."""
    return hmac.compare_digest(left, right)
