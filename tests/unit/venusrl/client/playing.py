"""An API that plays a script, and a clock that only sleeping moves."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from venusrl.client import AsyncClient, Client, Patience, Waiting

Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


@dataclass
class Script:
    """Answers in order, the last one for ever; remembers requests and sleeps."""

    answers: Sequence[Answer]
    requests: list[httpx.Request] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    _next: Iterator[int] = field(default_factory=itertools.count)

    def play(self, request: httpx.Request) -> httpx.Response:
        """The next answer."""
        request.read()
        self.requests.append(request)
        answer = self.answers[min(next(self._next), len(self.answers) - 1)]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    def client(self, tries: int = 5) -> Client:
        """A client of this API; back-off is its longest, sleeping takes no time."""
        patience = Patience(tries, self.slept.append, lambda _low, high: high)
        waiting = Waiting(lambda: sum(self.slept), self.slept.append)
        transport = httpx.MockTransport(self.play)
        return Client(
            "http://api", "vrl_k", transport=transport, patience=patience, waiting=waiting
        )

    def async_client(self, tries: int = 5) -> AsyncClient:
        """The same for the asynchronous client."""

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        patience = Patience(tries, sleep, lambda _low, high: high)
        waiting = Waiting(lambda: sum(self.slept), sleep)
        transport = httpx.MockTransport(self.play)
        return AsyncClient(
            "http://api", "vrl_k", transport=transport, patience=patience, waiting=waiting
        )


def problem(status: int, code: str, **more: Any) -> httpx.Response:
    """A refusal."""
    document = {"status": status, "code": code, "detail": f"it is {code}", **more}
    headers = {"X-Request-Id": "req_1", "Content-Type": "application/problem+json"}
    return httpx.Response(status, json=document, headers=headers)


def page(data: list[Any], next_: str | None = None) -> httpx.Response:
    """One page of a list."""
    return httpx.Response(200, json={"data": data, "has_more": next_ is not None, "next": next_})


def job(**changes: Any) -> dict[str, Any]:
    """A job as the API shows it."""
    return {
        "id": "job_1",
        "project_id": "prj_1",
        "name": "j",
        "state": "running",
        "desired": "run",
        "attempt_id": "att_1",
        "attempt": 1,
        "generation": 1,
        "observed_generation": 1,
        "spec": {},
        "labels": {},
        "created_at": "2026-01-01T00:00:00Z",
        **changes,
    }


def answers(*records: Any) -> list[Answer]:
    """Each record as a successful answer."""
    return [httpx.Response(200, json=record) for record in records]
