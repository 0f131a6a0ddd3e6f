"""POST once: the idempotency row and the object commit in one transaction.

A concurrent retry blocks on the row's unique key until the first commits, then gets its answer; a
gateway that died after the commit left the answer for the retry; one that died before left nothing.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Header
from fastapi.responses import JSONResponse

from api.audit.call import name_created
from api.gateway import Gateway
from api.problems import conflict
from infra import failpoints
from stores import idempotency
from stores.unit_of_work import AsyncConnection

FAILPOINT_AFTER_COMMIT: Final = "api.after_commit_before_reply"

REPLAYED: Final = "Idempotent-Replayed"
"""Header of an answer that was given before."""

IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$"),
]


@dataclass(frozen=True, slots=True)
class Once:
    """One POST: whose key, which key, and a digest of what was asked."""

    scope: str
    key: str | None
    path: str
    body: Any

    @property
    def request_sha(self) -> str:
        """Digest of path and body: the same key with another one is a conflict."""
        text = json.dumps([self.path, self.body], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()


async def run_once(
    gateway: Gateway,
    once: Once,
    produce: Callable[[AsyncConnection], Awaitable[Mapping[str, Any]]],
    status: int = 201,
) -> JSONResponse:
    """Run `produce` in one transaction with the idempotency row, or repeat the stored answer."""
    async with gateway.database.begin() as connection:
        if once.key is not None:
            stored = await idempotency.take(connection, once.scope, once.key, once.request_sha)
            if stored is not None:
                return _repeat(stored, once)
        body = dict(await produce(connection))
        name_created(body)
        if once.key is not None:
            await idempotency.answer(connection, once.scope, once.key, status, body)
    failpoints.hit(FAILPOINT_AFTER_COMMIT)
    return JSONResponse(body, status)


def _repeat(stored: idempotency.Stored, once: Once) -> JSONResponse:
    if stored.request_sha != once.request_sha or stored.response is None:
        raise conflict("This Idempotency-Key was used for another request.", "idempotency_conflict")
    headers = {REPLAYED: "true"}
    return JSONResponse(stored.response, stored.status or 201, headers=headers)
