"""Requests that are safe to repeat, repeated.

A POST carries an idempotency key that stays the same over its tries, so that a lost answer never
makes a second object. GET, PUT, DELETE and a PATCH without a precondition repeat by nature.
"""

import json
import os
import random
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

import httpx

from venusrl._errors import ApiError, ConnectionFailed, UsageError, VenusError, api_error
from venusrl._paths import check
from venusrl._waiting import Waiting
from venusrl._wires import AsyncWire, BlockingWire, Sleep, Wire

P = ParamSpec("P")
R = TypeVar("R")

ADDRESS_VARIABLE: Final = "VENUS_API_URL"
KEY_VARIABLE: Final = "VENUS_API_KEY"

DEFAULT_ADDRESS: Final = "http://127.0.0.1:8420"

TRIES_MAX: Final = 8
"""With the back-off below about 25 s: longer than a restart of the API or a database."""

BACKOFF_FIRST_S: Final = 0.25
BACKOFF_MAX_S: Final = 8.0

RETRY_AFTER_MAX_S: Final = 60.0
"""A longer wait is the caller's decision, not the client's."""

TRIED_AGAIN: Final = frozenset({429, 502, 503, 504})
"""Statuses that say: nothing is wrong with the request, later."""


UPLOAD_ANSWER_S: Final = 600.0
"""The answer to an upload comes when all of it is stored."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A body of pieces, bytes or files of this machine; files are read anew at each try."""

    pieces: tuple[bytes | Path, ...]
    size: int
    media_type: str


@dataclass(frozen=True, slots=True)
class Request:
    """One request, repeatable as a whole."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    content: bytes | Upload | None = None
    answer_s: float | None = None
    """How long its answer may take, where that is longer than the client's own patience."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def prepared(self) -> "Request":
        """The same request with an idempotency key when it is a POST without one."""
        if self.method != "POST" or "Idempotency-Key" in self.headers:
            return self
        return replace(self, headers={**self.headers, "Idempotency-Key": uuid.uuid4().hex})

    @property
    def is_repeatable(self) -> bool:
        """Whether a second arrival changes nothing that the first did not."""
        return self.method != "PATCH" or "If-Match" not in self.headers


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long to try again; tests replace `sleep` and `jitter`."""

    tries: int = TRIES_MAX
    sleep: Sleep | None = None
    jitter: Callable[[float, float], float] = random.uniform

    def pause_s(self, attempt: int, retry_after: str | None = None) -> float:
        """Seconds before the next try (0-based): with back-off, and no less than the server asks for.

        A server whose database is away asks for a second each time; a restart may take longer than
        a second a try.
        """
        longest = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**attempt)
        pause = self.jitter(longest / 2, longest)
        if retry_after is not None and retry_after.isdigit():
            pause = max(pause, min(float(retry_after), RETRY_AFTER_MAX_S))
        return pause


@dataclass(frozen=True, slots=True)
class Dial:
    """Where a client calls, as whom, and how long it waits. Tests replace all but the first two."""

    base_url: str | None
    api_key: str | None
    timeout_s: float
    patience: Patience | None = None
    waiting: Waiting | None = None

    @property
    def address(self) -> str:
        """The API's address."""
        return (self.base_url or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS).rstrip("/")

    def options(self) -> dict[str, Any]:
        """Options of an httpx client. Raises VenusError without a key, UsageError for a strange one."""
        key = (self.api_key or os.environ.get(KEY_VARIABLE, "")).strip()
        if not key:
            raise VenusError(f"no key: give api_key or set {KEY_VARIABLE}")
        if not key.isascii() or not key.isprintable():
            raise UsageError("the key holds characters that no API key has")
        _check_address(self.address)
        return {
            "base_url": self.address,
            "headers": {"Authorization": f"Bearer {key}"},
            "timeout": httpx.Timeout(self.timeout_s, connect=min(self.timeout_s, 10.0)),
            "verify": _trusted(),
        }


def _check_address(address: str) -> None:
    """Refuse what no server can have: such a name would only fail after every retry."""
    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise UsageError(f"{address[:200]!r} is no address: {error}") from error
    if url.scheme not in ("http", "https"):
        raise UsageError(f"{address[:200]!r} is no address: it begins with http:// or https://")
    # httpx escapes what a host's name cannot hold instead of refusing it.
    if not url.host or "%" in url.raw_host.decode("ascii"):
        raise UsageError(f"{address[:200]!r} is no address: its host is no name")


@cache
def _trusted() -> ssl.SSLContext:
    """Whom TLS trusts, read once: reading the certificates costs as much as a dozen requests."""
    return httpx.create_ssl_context()


class Transport:
    """The HTTP side of one client: what is sent, how often, and what an answer means."""

    def __init__(self, dial: Dial, wire: Wire) -> None:
        self.base_url = dial.address
        self.patience = dial.patience or Patience()
        self._waiting = dial.waiting or Waiting()
        self._wire = wire

    async def close(self) -> None:
        """Close all connections."""
        await self._wire.close()

    async def send(self, request: Request) -> httpx.Response:
        """The answer; refusals raise ApiError, a lost API raises ConnectionFailed."""
        request = request.prepared()
        for attempt in range(self.patience.tries):
            is_last = attempt + 1 >= self.patience.tries or not request.is_repeatable
            try:
                response = await self._wire.send(self._build(request))
            except httpx.TransportError as error:
                if is_last:
                    raise ConnectionFailed(f"{self.base_url}: {error!r}") from error
                await self.pause(attempt)
                continue
            if response.status_code in TRIED_AGAIN and not is_last:
                await self.pause(attempt, response.headers.get("Retry-After"))
                continue
            return _checked(response)
        raise AssertionError("the last try returns or raises")

    async def pause(self, attempt: int, retry_after: str | None = None) -> None:
        """Wait before the next try."""
        await self._sleep(self.patience.pause_s(attempt, retry_after), self.patience.sleep)

    async def polls(self, timeout_s: float | None) -> AsyncIterator[None]:
        """One turn per poll: the first at once, the last at the deadline; None: for ever."""
        for pause in self._waiting.pauses(timeout_s):
            if pause > 0:
                await self._sleep(pause, self._waiting.sleep)
            yield

    async def _sleep(self, seconds: float, given: Sleep | None) -> None:
        if given is None:
            await self._wire.sleep(seconds)
            return
        slept = given(seconds)
        if slept is not None:
            await slept

    @asynccontextmanager
    async def stream(
        self, request: Request, read_timeout_s: float | None
    ) -> AsyncIterator[httpx.Response]:
        """One streamed answer, without repetition: the caller knows where it stopped."""
        timeout = httpx.Timeout(10.0, read=read_timeout_s)
        response = await self._wire.send(self._build(request, timeout), is_stream=True)
        try:
            if response.is_error:
                await self._wire.read(response)
                _checked(response)
            yield response
        finally:
            await self._wire.end(response)

    def lines(self, response: httpx.Response) -> AsyncIterator[str]:
        """Lines of a streamed answer."""
        return self._wire.lines(response)

    def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Bytes of a streamed answer."""
        return self._wire.chunks(response)

    async def aside(self, act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run what takes long on this machine."""
        return await self._wire.aside(act, *args, **kwargs)

    def _build(self, request: Request, timeout: httpx.Timeout | None = None) -> httpx.Request:
        params = {k: v for k, v in request.params.items() if v is not None}
        headers = dict(request.headers)
        extra: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        if request.body is not None:
            extra["content"] = _json(request.body)
            headers["Content-Type"] = "application/json"
        if request.answer_s is not None:
            extra["timeout"] = httpx.Timeout(request.answer_s, connect=10.0)
        if isinstance(request.content, Upload):
            extra["content"] = self._wire.body(request.content.pieces)
            extra["timeout"] = httpx.Timeout(UPLOAD_ANSWER_S, connect=10.0)
            headers["Content-Length"] = str(request.content.size)
            headers["Content-Type"] = request.content.media_type
        elif request.content is not None:
            extra["content"] = request.content
        path = check(request.path)
        try:
            return self._wire.build(request.method, path, params=params, headers=headers, **extra)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise UsageError(f"{self.base_url}{path[:200]}: {error}") from error


def blocking_transport(dial: Dial, transport: httpx.BaseTransport | None) -> Transport:
    """A transport none of whose coroutines suspends."""
    http = httpx.Client(transport=transport, **dial.options())
    return Transport(dial, BlockingWire(http))


def async_transport(dial: Dial, transport: httpx.AsyncBaseTransport | None) -> Transport:
    """A transport on the running event loop."""
    http = httpx.AsyncClient(transport=transport, **dial.options())
    return Transport(dial, AsyncWire(http))


def _json(body: Any) -> bytes:
    """The body as text. Raises UsageError for what JSON cannot say: NaN, a set, half a surrogate."""
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the request cannot be said in JSON: {error}") from error


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_error:
        raise _error_of(response)
    return response


def _error_of(response: httpx.Response) -> ApiError:
    try:
        document = json.loads(response.content)
    except ValueError:
        document = {}
    if not isinstance(document, dict):
        document = {}
    request_id = response.headers.get("X-Request-Id", "")
    return api_error(response.status_code, document, request_id)
