"""Who may read a departing rollout's pages, and that it was really its host that gave them.

    leader -> target   address, hop, expires, key = HMAC(data key of the source, rollout, hop, expires)
    target -> source   expires, HMAC(key, method, path)
    source -> target   ticket, HMAC(key, ticket); pages are checked against the ticket's checksums

The key is of one placement that is over: only the leader, which holds the data key from the source's
snapshot, can make it. So a request that proves it also proves that the placement is over.
"""

import hmac
from typing import Final

from infra.proofs import proof

ACCESS_S: Final = 60.0
"""How long a key opens anything: the source keeps pages for half of it, the rest is for two clocks that
do not agree and for a target whose connection is slow."""


def access_key(data_key: str, rollout_id: str, hop: int, expires: int) -> bytes:
    """Key to the pages of the placement of a rollout with this hop."""
    return proof(data_key.encode(), b"kv", rollout_id, hop, expires)


def sign_request(key: bytes, method: str, path: str) -> str:
    """What a target sends along with a request."""
    return proof(key, b"request", method, path).hex()


def sign_answer(key: bytes, body: bytes) -> str:
    """What a source sends along with a ticket."""
    return proof(key, b"answer", body).hex()


def matches(left: str, right: str) -> bool:
    """Comparison in constant time."""
    return hmac.compare_digest(left.encode(), right.encode())
