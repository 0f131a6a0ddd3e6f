"""What holds for every request before any route: its id, the limit of its body, a plain address.

Plain ASGI, so that streamed answers pass through untouched.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from prometheus_client import Counter, Gauge
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.audit.call import SAFE_METHODS, Call, serving
from api.bodies import number_in
from api.problems import Problem, problem_response, too_large
from infra.ids import IdSource
from infra.logging import get_logger

REQUEST_ID_CHARS_MAX: Final = 100
"""A client's own request id is echoed into headers and logs; longer ones are replaced."""

METHODS: Final = frozenset({"GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"})
"""Label values; what a client invents counts as `other`."""

REQUESTS: Final = Counter("venus_http_requests", "Answers of the gateway.", ["method", "status"])

IN_FLIGHT: Final = Gauge("venus_http_in_flight", "Requests that are being served.")

UPLOAD_SUFFIXES: Final = ("/versions", "/v1/models", "/files")
"""Only uploads may be larger than an ordinary request; their routes have limits of their own."""


class Edge:
    """Wraps the application. `body_limit` is None where nothing is served.

    `send_s`: a client that takes none of its answer for so long has gone, whatever its socket says.
    """

    def __init__(self, app: ASGIApp, ids: IdSource, body_limit: int | None, send_s: float) -> None:
        self._app = app
        self._send_s = send_s
        self._ids = ids
        self._body_limit = body_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with IN_FLIGHT.track_inprogress():
            await self._audited(scope, receive, send)

    async def _audited(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        request_id = self._request_id(headers.get("x-request-id", ""))
        scope.setdefault("state", {})["request_id"] = request_id
        if scope["method"] in SAFE_METHODS:
            await self._serve(scope, receive, send)
            return
        call = Call(scope, request_id)

        async def noted(message: Message) -> None:
            is_refusal = message["type"] == "http.response.start" and is_refused(message["status"])
            if is_refusal and call.is_due:
                await scope["app"].state.gateway.database.note_refusal(call)
            await send(message)

        with serving(call):
            await self._serve(scope, receive, noted)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, request_id = Headers(scope=scope), scope["state"]["request_id"]

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                REQUESTS.labels(_method(scope["method"]), f"{message['status'] // 100}xx").inc()
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            try:
                async with asyncio.timeout(self._send_s):
                    await send(message)
            except TimeoutError as error:
                raise ClientDisconnect from error

        limit = None if scope["path"].endswith(UPLOAD_SUFFIXES) else self._body_limit
        refusal = _refusal(scope, headers, limit)
        if refusal is not None:
            await problem_response(Request(scope), refusal)(scope, receive, stamped)
            return
        try:
            await self._app(scope, _limited(receive, limit), stamped)
        except ClientDisconnect:
            get_logger().info("client.gone", path=scope["path"], request_id=request_id)

    def _request_id(self, given: str) -> str:
        is_usable = 0 < len(given) <= REQUEST_ID_CHARS_MAX and given.isascii()
        return given if is_usable and given.isprintable() else self._ids.new("req")


def is_refused(status: int) -> bool:
    """Whether a status says that the caller may not, as it stands."""
    return 400 <= status < 500


def _method(given: str) -> str:
    return given if given in METHODS else "other"


def _refusal(scope: Scope, headers: Headers, limit: int | None) -> Problem | None:
    """What is wrong with the request's head, if anything."""
    query: bytes = scope.get("query_string", b"")
    if "\x00" in scope["path"] or b"\x00" in unquote_to_bytes(query):
        return Problem(400, "bad_request", "The address holds a NUL character.")
    if limit is not None and number_in(headers, "content-length") > limit:
        return too_large("The request", limit)
    return None


def _limited(receive: Receive, limit: int | None) -> Receive:
    """`receive` that refuses a body which grows beyond the limit without having said so."""
    if limit is None:
        return receive
    size = 0

    async def counted() -> MutableMapping[str, Any]:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise HTTPException(413, too_large("The request", limit).detail)
        return message

    return counted
