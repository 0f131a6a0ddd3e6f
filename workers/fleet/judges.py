"""Judges of a job, asked by the node agent: user code never holds their keys and has no network.

| what happens | what the reward meets |
|---|---|
| an answer | its text; calls and tokens are counted where it was asked |
| 408, 409, 425, 429, 5xx, no connection | asked again with back-off, then `unreachable` or `refused` |
| any other status, a redirect, a forbidden host | `refused` |
| no chat completion, a cut one, one that is too long | `bad_answer` |
| no answer in time | `unreachable` |

No outcome but an answer is ever a reward: the rollout is unscorable with `judge_` and the reason.
"""

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from infra.clock import Clock
from infra.outside import HostForbidden, OutsideTransport
from venusrl.env.host.chat_wire import (
    RETRIED,
    TRIES_MAX,
    BadCompletion,
    pause_s,
    read_completion,
    wire_message,
)
from venusrl.env.judge import JudgeAnswer, JudgeFailure, JudgeRequest, JudgeUnavailable
from venusrl.env.messages import Message
from venusrl.env.redaction import Redactor

ANSWER_TOKENS_MAX: Final = 1024
"""Longest verdict of a judge; a longer one is a failure, not half a verdict."""

ANSWER_BYTES_MAX: Final = 4 << 20
"""Of one body: far above any verdict, far below what would hurt the node."""

TRY_S: Final = 60.0
"""One request with its whole body, however slowly it drips."""

ANSWER_S: Final = 180.0
"""One question with all its tries; a reward that waits longer than this has asked for more time."""

PLACE_S: Final = 300.0
"""Wait for one of the judge's places; beyond it the judge is too slow for the job."""

DETAIL_CHARS_MAX: Final = 300
"""Of what the other side said, in a cause."""

SAID_BYTES_MAX: Final = 64 << 10
"""Looked through for the key before it is cut; longer than any key."""


@dataclass(slots=True)
class HttpJudge:
    """One judge at one address. `key` may change: a secret that is written anew reaches the next question."""

    url: str
    model: str
    at_once: int
    allowed_hosts: Sequence[str]
    clock: Clock
    key: str | None = field(default=None, repr=False)
    draw: Callable[[float, float], float] = random.uniform
    try_s: float = TRY_S
    answer_s: float = ANSWER_S
    _http: httpx.AsyncClient = field(init=False)
    _places: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """Connections of its own: they are kept by address, and TLS is checked by name."""
        self._http = httpx.AsyncClient(
            transport=OutsideTransport(self.allowed_hosts, self.at_once),
            timeout=self.try_s,
            follow_redirects=False,
            trust_env=False,
        )
        self._places = asyncio.Semaphore(self.at_once)

    async def ask(self, prompt: str) -> JudgeAnswer:
        """One answer. Raises JudgeUnavailable; its detail never shows the key."""
        try:
            async with asyncio.timeout(PLACE_S):
                await self._places.acquire()
        except TimeoutError:
            detail = f"none of {self.at_once} places was free within {PLACE_S:g} s"
            raise JudgeUnavailable("unreachable", detail) from None
        try:
            async with asyncio.timeout(self.answer_s):
                return await self._answer(prompt)
        except TimeoutError:
            detail = f"{self._place()}: no answer within {self.answer_s:g} s"
            raise JudgeUnavailable("unreachable", detail) from None
        finally:
            self._places.release()

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def _answer(self, prompt: str) -> JudgeAnswer:
        failure = _Failure("unreachable", "no try")
        for attempt in range(TRIES_MAX):
            if attempt:
                await self.clock.sleep(pause_s(attempt - 1, failure.retry_after, self.draw))
            outcome = await self._try(prompt)
            if isinstance(outcome, JudgeAnswer):
                return outcome
            failure = outcome
            if not failure.may_pass:
                break
        detail = self._struck(f"{self._place()}: {failure.detail}")
        raise JudgeUnavailable(failure.reason, detail)

    async def _try(self, prompt: str) -> "JudgeAnswer | _Failure":
        body = {
            "model": self.model,
            "messages": [wire_message(Message("user", prompt))],
            "temperature": 0.0,
            "max_tokens": ANSWER_TOKENS_MAX,
        }
        # No compression: a small body must not become a large one.
        headers = {"Accept-Encoding": "identity"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            async with asyncio.timeout(self.try_s):
                address = completions_of(self.url)
                async with self._http.stream("POST", address, json=body, headers=headers) as said:
                    return _read(said, await _body(said), self._struck)
        except HostForbidden as error:
            return _Failure("refused", str(error))
        except httpx.InvalidURL as error:
            return _Failure("refused", f"no address: {error}")
        except TimeoutError:
            return _Failure("unreachable", f"no answer within {self.try_s:g} s", may_pass=True)
        except httpx.TransportError as error:
            text = f"{type(error).__name__} {error}".strip()[:DETAIL_CHARS_MAX]
            return _Failure("unreachable", text, may_pass=True)

    def _struck(self, text: str) -> str:
        """What the other side said without the key: some servers repeat what they were sent."""
        return Redactor([self.key] if self.key else []).text(text)

    def _place(self) -> str:
        """Host and port alone: a path or a query may hold what is not for a log."""
        try:
            return httpx.URL(self.url).netloc.decode("ascii", "replace").rpartition("@")[2]
        except httpx.InvalidURL:
            return "the judge"


@dataclass(slots=True)
class JobJudges:
    """Implements `JudgePort` for one attempt: each judge by its name in the spec."""

    judges: Mapping[str, HttpJudge]

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        """See `JudgePort.ask`."""
        if request.judge is None and len(self.judges) == 1:
            (judge,) = self.judges.values()
            return await judge.ask(request.prompt)
        known = ", ".join(sorted(self.judges)) or "none"
        if request.judge is None:
            detail = f"the job has these judges, name one: {known}"
            raise JudgeUnavailable("not_configured", detail)
        named = self.judges.get(request.judge)
        if named is None:
            detail = f"the job has no judge {request.judge[:100]!r}; it has {known}"
            raise JudgeUnavailable("not_configured", detail)
        return await named.ask(request.prompt)

    async def close(self) -> None:
        """Close all connections."""
        for judge in self.judges.values():
            await judge.close()


@dataclass(frozen=True, slots=True)
class _Failure:
    """A try without an answer; `may_pass`: another one may have more luck."""

    reason: JudgeFailure
    detail: str
    may_pass: bool = False
    retry_after: str | None = None


def completions_of(url: str) -> httpx.URL:
    """Where a judge answers: below its address, whose query stays."""
    base = httpx.URL(url)
    return base.copy_with(path=f"{base.path.rstrip('/')}/chat/completions", fragment=None)


async def _body(response: httpx.Response) -> bytes | None:
    """The body; None when it is longer than any answer."""
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > ANSWER_BYTES_MAX:
            return None
    return bytes(data)


def _read(
    response: httpx.Response, body: bytes | None, strike: Callable[[str], str]
) -> JudgeAnswer | _Failure:
    status = response.status_code
    if body is None:
        return _Failure("bad_answer", f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    if response.headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
        return _Failure("bad_answer", "the answer is compressed, which was not asked for")
    said = body[:SAID_BYTES_MAX].decode("utf-8", "replace")
    text = strike(said)[:DETAIL_CHARS_MAX]
    if status in RETRIED or status >= 500:
        reason: JudgeFailure = "unreachable" if status >= 500 else "refused"
        after = response.headers.get("Retry-After")
        return _Failure(reason, f"answered {status}: {text}", status in RETRIED, after)
    if 300 <= status < 400:
        return _Failure("refused", f"answered {status}: redirects are not followed")
    if status != 200:
        return _Failure("refused", f"answered {status}: {text}")
    return _completion(body)


def _completion(body: bytes) -> JudgeAnswer | _Failure:
    try:
        document: Any = json.loads(body)
        reply = read_completion(document)
    except BadCompletion as error:
        return _Failure("bad_answer", str(error)[:DETAIL_CHARS_MAX])
    except (ValueError, RecursionError):
        return _Failure("bad_answer", "the answer is no JSON")
    if reply.is_cut:
        return _Failure("bad_answer", f"the answer was cut at {ANSWER_TOKENS_MAX} tokens")
    return JudgeAnswer(reply.message.content, reply.prompt_tokens or 0, reply.sampled_tokens or 0)
