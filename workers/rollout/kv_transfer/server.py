"""The door at which other engine hosts fetch the pages of rollouts that leave this one, over HTTP.

    GET    /kv/{rollout}/{hop}         ticket; the first request makes the rollout leave, if it has not
    GET    /kv/{rollout}/{hop}/pages   a range of bytes
    DELETE /kv/{rollout}/{hop}         the target has them: give the room back
    GET    /metrics                    what the engine counts, for Prometheus

It listens on the loopback or a private interface, and every request for pages proves the key of one
placement. Metrics are numbers of the engine alone and need none.
"""

import socket
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import uvicorn

from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvRefused, KvTicket
from infra.codec import to_json
from infra.kv_access import access_key, matches, sign_answer, sign_request
from workers.rollout.exposition import CONTENT_TYPE
from workers.rollout.kv_transfer.transfer import KvTransfer

RANGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of one answer: pages are checked as they come, and nothing large is held twice."""

CONNECTIONS_MAX: Final = 64
"""Targets at once; more are told to come later, and compute instead."""

DIGITS_MAX: Final = 18
"""Of a hop, a time or a place in the pages: each fits 64 bits."""

METRICS_PATH: Final = "/metrics"

PROOF_HEADER: Final = "x-kv-proof"
EXPIRES_HEADER: Final = "x-kv-expires"

_STATUS: Final = {
    KvFailure.FORBIDDEN: HTTPStatus.FORBIDDEN,
    KvFailure.EXPIRED: HTTPStatus.FORBIDDEN,
    KvFailure.MALFORMED: HTTPStatus.BAD_REQUEST,
    KvFailure.SHORT: HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    KvFailure.NO_ROOM: HTTPStatus.INSUFFICIENT_STORAGE,
}
"""Of a refusal; every other one says that there is nothing to fetch."""

Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Refused:
    """Body of an answer without pages."""

    reason: KvFailure
    detail: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as far as the path tells."""

    rollout_id: RolloutId
    hop: int
    wants_pages: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back."""

    status: HTTPStatus
    body: bytes
    headers: Mapping[str, str]


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """The host's process has handlers of its own."""
        yield


class KvServer:
    """`depart(rollout, hop)` makes a rollout leave and returns its ticket, or raises KvRefused."""

    def __init__(
        self,
        transfer: KvTransfer,
        data_key: str,
        depart: Callable[[RolloutId, int], Awaitable[KvTicket]],
        now: Callable[[], float],
        *,
        metrics: Callable[[], bytes] = bytes,
        interface: str = "127.0.0.1",
    ) -> None:
        self._transfer = transfer
        self._data_key = data_key
        self._depart = depart
        self._now = now
        self._metrics = metrics
        self._socket = socket.create_server((interface, 0))
        host, port = self._socket.getsockname()[:2]
        self.address = f"{host}:{port}"
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)

    async def run(self) -> None:
        """Serve until `stop` or cancellation."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            for listener in getattr(self._server, "servers", ()):
                listener.close()
            self._socket.close()

    def stop(self) -> None:
        """Make `run` return, which closes the door."""
        self._server.should_exit = True

    async def _app(self, scope: Scope, receive: object, send: Send) -> None:
        del receive
        assert scope["type"] == "http"
        # Any bytes may come; as latin-1 each is one character, and none of them is a digit by surprise.
        headers = {_text(name): _text(value) for name, value in scope["headers"]}
        try:
            answer = await self._answer(scope["method"], _text(scope["raw_path"]), headers)
        except KvRefused as refused:
            status = _STATUS.get(refused.reason, HTTPStatus.NOT_FOUND)
            answer = Answer(status, to_json(Refused(refused.reason, str(refused))), {})
        lines = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        lines.append((b"content-length", str(len(answer.body)).encode()))
        start = {"type": "http.response.start", "status": int(answer.status), "headers": lines}
        await send(start)
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        if (method, path) == ("GET", METRICS_PATH):
            return Answer(HTTPStatus.OK, self._metrics(), {"content-type": CONTENT_TYPE})
        asked = _parse(path)
        key = self._admit(asked, method, path, headers)
        if method == "DELETE":
            self._transfer.release(asked.rollout_id)
            return Answer(HTTPStatus.NO_CONTENT, b"", {})
        ticket = await self._depart(asked.rollout_id, asked.hop)
        if asked.wants_pages:
            return self._pages(ticket, headers.get("range", ""))
        body = to_json(ticket)
        return Answer(HTTPStatus.OK, body, {PROOF_HEADER: sign_answer(key, body)})

    def _admit(self, asked: Asked, method: str, path: str, headers: Mapping[str, str]) -> bytes:
        if EXPIRES_HEADER not in headers:
            raise KvRefused(KvFailure.FORBIDDEN, "no proof")
        expires = _whole(headers[EXPIRES_HEADER])
        key = access_key(self._data_key, asked.rollout_id, asked.hop, expires)
        if not matches(headers.get(PROOF_HEADER, ""), sign_request(key, method, path)):
            raise KvRefused(KvFailure.FORBIDDEN, "the proof is of another placement")
        if self._now() >= expires:
            raise KvRefused(KvFailure.EXPIRED, "the key is too old")
        return key

    def _pages(self, ticket: KvTicket, wanted: str) -> Answer:
        first, last = _range(wanted)
        if last >= ticket.size:
            raise KvRefused(KvFailure.SHORT, f"byte {last} of {ticket.size}")
        body = self._transfer.read(ticket.rollout_id, first, last - first + 1)
        found = f"bytes {first}-{last}/{ticket.size}"
        return Answer(HTTPStatus.PARTIAL_CONTENT, body, {"content-range": found})


def _parse(path: str) -> Asked:
    match path.strip("/").split("/"):
        case ["kv", rollout, hop]:
            return Asked(RolloutId(unquote(rollout)), _whole(hop), wants_pages=False)
        case ["kv", rollout, hop, "pages"]:
            return Asked(RolloutId(unquote(rollout)), _whole(hop), wants_pages=True)
    raise KvRefused(KvFailure.MALFORMED, "no such path")


def _range(text: str) -> tuple[int, int]:
    unit, _, both = text.partition("=")
    ends = [_whole(end) for end in both.split("-")] if unit == "bytes" else []
    if len(ends) != 2:
        raise KvRefused(KvFailure.MALFORMED, "one range with both ends is needed")
    first, last = ends
    if not 0 <= last - first < RANGE_BYTES_MAX:
        raise KvRefused(KvFailure.MALFORMED, f"at most {RANGE_BYTES_MAX} bytes at a time")
    return first, last


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _whole(text: str) -> int:
    """A number of somebody else's request. Raises KvRefused; `isdigit` alone also takes a superscript."""
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise KvRefused(KvFailure.MALFORMED, f"a whole number is needed, not {text[:20]!r}")
    return int(text)
