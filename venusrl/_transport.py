"""Requests that are safe to repeat, repeated.

A POST carries an idempotency key that stays the same over its tries, so that a lost answer never
makes a second object. GET, PUT, DELETE and a PATCH without a precondition repeat by nature.
"""

import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from venusrl._errors import ApiError, ConnectionFailed, VenusError, api_error

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


@dataclass(frozen=True, slots=True)
class Request:
    """One request, repeatable as a whole."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def prepared(self) -> "Request":
        """The same request with an idempotency key when it is a POST without one."""
        if self.method != "POST" or "Idempotency-Key" in self.headers:
            return self
        headers = {**self.headers, "Idempotency-Key": uuid.uuid4().hex}
        return Request(self.method, self.path, self.params, self.body, self.content, headers)

    @property
    def is_repeatable(self) -> bool:
        """Whether a second arrival changes nothing that the first did not."""
        return self.method != "PATCH" or "If-Match" not in self.headers


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long to try again; tests replace `sleep` and `jitter`."""

    tries: int = TRIES_MAX
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[float, float], float] = random.uniform

    def pause(self, attempt: int, retry_after: str | None = None) -> None:
        """Wait before the next try (0-based): with back-off, and no less than the server asks for.

        A server whose database is away asks for a second each time; a restart may take longer than
        a second a try.
        """
        longest = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**attempt)
        pause = self.jitter(longest / 2, longest)
        if retry_after is not None and retry_after.isdigit():
            pause = max(pause, min(float(retry_after), RETRY_AFTER_MAX_S))
        self.sleep(pause)


class Transport:
    """The HTTP side of one client."""

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        *,
        timeout_s: float,
        patience: Patience,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        address = base_url or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
        self.base_url = address.rstrip("/")
        key = api_key or os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise VenusError(f"no key: give api_key or set {KEY_VARIABLE}")
        self.patience = patience
        self._http = httpx.Client(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0)),
            transport=transport,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def send(self, request: Request) -> httpx.Response:
        """The answer; refusals raise ApiError, a lost API raises ConnectionFailed."""
        request = request.prepared()
        for attempt in range(self.patience.tries):
            is_last = attempt + 1 >= self.patience.tries or not request.is_repeatable
            try:
                response = self._http.send(self._build(request))
            except httpx.TransportError as error:
                if is_last:
                    raise ConnectionFailed(f"{self.base_url}: {error!r}") from error
                self.patience.pause(attempt)
                continue
            if response.status_code in TRIED_AGAIN and not is_last:
                self.patience.pause(attempt, response.headers.get("Retry-After"))
                continue
            return _checked(response)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def stream(self, request: Request, read_timeout_s: float | None) -> Iterator[httpx.Response]:
        """One streamed answer, without repetition: the caller knows where it stopped."""
        timeout = httpx.Timeout(10.0, read=read_timeout_s)
        built = self._build(request, timeout)
        response = self._http.send(built, stream=True)
        try:
            if response.is_error:
                response.read()
                _checked(response)
            yield response
        finally:
            response.close()

    def _build(self, request: Request, timeout: httpx.Timeout | None = None) -> httpx.Request:
        params = {k: v for k, v in request.params.items() if v is not None}
        extra: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        if request.body is not None:
            extra["json"] = request.body
        if request.content is not None:
            extra["content"] = request.content
        return self._http.build_request(
            request.method, request.path, params=params, headers=dict(request.headers), **extra
        )


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
