"""A delivery as the request that carries it."""

import json
from dataclasses import dataclass

from infra import signatures
from stores.system.deliveries import Claimed

AGENT = "VenusRL-Webhooks/1"


@dataclass(frozen=True, slots=True)
class Message:
    """One request: the body does not change over its tries, the headers do."""

    headers: list[tuple[bytes, bytes]]
    body: bytes


def body_of(one: Claimed) -> bytes:
    """The JSON that is signed and sent."""
    data = {"body": one.body}
    if one.job_id is not None:
        data = {"job_id": one.job_id, "seq": one.seq, **data}  # type: ignore[dict-item]  # JSON
    said = {"type": one.type, "timestamp": one.happened_at.isoformat(), "data": data}
    return json.dumps(said, separators=(",", ":")).encode()


def message_of(one: Claimed, installation_key: bytes, timestamp: int) -> Message:
    """The request of one try, signed for its time."""
    body = body_of(one)
    generations = [one.generation]
    if one.signs_twice and one.generation > 1:
        generations.append(one.generation - 1)
    secrets = [signatures.secret_of(installation_key, one.webhook_id, g) for g in generations]
    signed = " ".join(signatures.signature(s, one.event_id, timestamp, body) for s in secrets)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "user-agent": AGENT,
        "webhook-id": one.event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signed,
    }
    return Message([(name.encode(), value.encode()) for name, value in headers.items()], body)
