"""How webhooks are signed and tried again: Standard Webhooks, version 1.

A secret is derived and never stored: HMAC of the installation's key over the webhook's id and the
generation of its secret. Rotating raises the generation. Pure: keys, times and chance are arguments.
"""

import base64
import hashlib
import hmac
from typing import Final

SECRET_PREFIX: Final = "whsec_"

RETRY_FACTOR: Final = 4.0
"""Between two tries: from seconds to half a day in a few of them."""

RETRY_MAX_S: Final = 43_200.0
"""A receiver that was mended is served within half a day."""

JITTER: Final = 0.2
"""Share by which a pause is longer or shorter, so that what failed together does not return so."""


def secret_of(installation_key: bytes, webhook_id: str, generation: int) -> bytes:
    """The 32 bytes that sign for one generation of a webhook's secret."""
    return _mac(installation_key, f"webhook/{webhook_id}/{generation}".encode())


def shown_secret(secret: bytes) -> str:
    """The secret as its owner keeps it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def key_check(installation_key: bytes) -> str:
    """Tells two installation keys apart without telling anything of either."""
    return _mac(installation_key, b"webhook/check").hex()[:16]


def signature(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """One signature of a message, as the header `webhook-signature` has it."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(_mac(secret, signed)).decode()


def retry_pause_s(tries: int, first_s: float, chance: float) -> float:
    """Seconds after so many failed tries; `chance` is in [0, 1)."""
    assert tries >= 1
    exponent = min(tries - 1, 32)
    pause = min(first_s * RETRY_FACTOR**exponent, RETRY_MAX_S)
    return pause * (1.0 + JITTER * (2.0 * chance - 1.0))


def event_id(job_id: str, seq: int) -> str:
    """Id of a job's event: what `webhook-id` says."""
    return f"evt_{job_id.removeprefix('job_')}_{seq:09d}"


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()
