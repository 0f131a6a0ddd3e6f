"""The edge: request ids, limits of bodies, plain addresses."""

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from api.edge import Edge
from infra.ids import IdSource

LIMIT = 10


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the body and the request id."""
    request = Request(scope, receive)
    body = {"size": len(await request.body()), "id": request.state.request_id}
    await JSONResponse(body)(scope, receive, send)


def call(
    path: str = "/v1/jobs", chunks: Sequence[bytes] = (b"",), query: bytes = b"", **headers: str
) -> list[Message]:
    """The messages that the edge sends."""
    named = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    scope = {
        "type": "http", "method": "POST", "path": path, "query_string": query, "headers": named,
        "server": ("api", 80), "scheme": "http", "root_path": "",
    }  # fmt: skip
    left = list(chunks)
    sent: list[Message] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(Edge(echo, IdSource(), LIMIT, 5.0)(scope, receive, send))
    return sent


def status_of(sent: Sequence[Message]) -> int:
    """Status of the answer."""
    return int(sent[0]["status"])


def test_a_body_within_the_limit_passes() -> None:
    assert status_of(call(chunks=[b"12345", b"67890"])) == 200


def test_a_declared_length_beyond_the_limit_is_refused_unread() -> None:
    assert status_of(call(chunks=[], content_length="11")) == 413


def test_uploads_have_their_own_limit() -> None:
    assert status_of(call("/v1/environments/calc/versions", [b"x" * 50])) == 200


def test_a_nul_in_path_or_query_is_refused() -> None:
    assert status_of(call("/v1/jobs/\x00")) == 400
    assert status_of(call(query=b"after=%00")) == 400


def test_a_given_request_id_comes_back_and_an_unusable_one_is_replaced() -> None:
    for given, is_kept in (("mine", True), ("", False), ("x" * 101, False), ("a\tb", False)):
        headers = dict(call(x_request_id=given)[0]["headers"])
        assert (headers[b"x-request-id"] == given.encode()) is is_kept, given
