"""Who speaks in a local evaluation: an OpenAI-compatible URL, or a checkpoint of the platform.

A policy that gives no answer raises `PolicyFailed` with a closed reason. That is never a reward: the
rollout is counted apart, and a failure that would meet every request ends the evaluation.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

import httpx

from venusrl._errors import ApiError, OperationFailed, Unavailable, VenusError
from venusrl.client import Client
from venusrl.env.host.chat_wire import (
    BACKOFF_FIRST_S,
    RETRIED,
    TRIES_MAX,
    BadCompletion,
    Reply,
    argument_text,
    pause_s,
    read_completion,
    wire_message,
)
from venusrl.env.messages import Json, Message, ToolCall
from venusrl.env.wire import message_to_json

REQUEST_TIMEOUT_S: Final = 120.0
"""Of one answer: a large model may take minutes for a long one."""

FATAL: Final = frozenset({401, 403, 404})
"""A wrong key, model or address: every further request would be answered alike."""

FailureReason: TypeAlias = Literal["unreachable", "refused", "bad_answer"]


class PolicyFailed(Exception):
    """No answer. `is_fatal`: none can be expected for any other rollout either."""

    def __init__(self, reason: FailureReason, detail: str, *, is_fatal: bool = False) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: FailureReason = reason
        self.detail = detail
        self.is_fatal = is_fatal


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn."""

    temperature: float = 1.0
    max_tokens: int = 512
    seed: int = 0


class ContextFull(Exception):
    """The conversation no longer fits the model: the rollout ends, as it would on the platform."""


class Policy(Protocol):
    """Answers conversations."""

    async def answer(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Json]], seed: int
    ) -> Reply:
        """One answer. Raises PolicyFailed or ContextFull."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


@dataclass(slots=True)
class Endpoint:
    """`POST {base_url}/chat/completions`, as every OpenAI-compatible server has it."""

    base_url: str
    model: str
    key: str | None
    sampling: Sampling
    transport: httpx.AsyncBaseTransport | None = None
    pause_s: float = BACKOFF_FIRST_S
    _http: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self._http = httpx.AsyncClient(
            headers=headers, timeout=REQUEST_TIMEOUT_S, transport=self.transport
        )

    async def answer(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Json]], seed: int
    ) -> Reply:
        """See `Policy.answer`."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [wire_message(message) for message in messages],
            "temperature": self.sampling.temperature,
            "max_tokens": self.sampling.max_tokens,
        }
        if tools:
            body["tools"] = [{"type": "function", "function": dict(tool)} for tool in tools]
        document = await self._post(body)
        try:
            return read_completion(document)
        except BadCompletion as error:
            raise PolicyFailed("bad_answer", str(error)) from error

    async def close(self) -> None:
        """See `Policy.close`."""
        await self._http.aclose()

    async def _post(self, body: Mapping[str, Any]) -> Any:
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        for attempt in range(TRIES_MAX):
            is_last = attempt + 1 == TRIES_MAX
            try:
                response = await self._http.post(url, json=body)
            except httpx.TransportError as error:
                if is_last:
                    raise PolicyFailed("unreachable", f"{url}: {error!r}") from error
                await self._pause(attempt, None)
                continue
            if response.status_code in RETRIED and not is_last:
                await self._pause(attempt, response.headers.get("Retry-After"))
                continue
            return _checked(url, response)
        raise AssertionError("the last try returns or raises")

    async def _pause(self, attempt: int, retry_after: str | None) -> None:
        await asyncio.sleep(pause_s(attempt, retry_after, random.uniform, self.pause_s))


def _checked(url: str, response: httpx.Response) -> Any:
    text = response.text[:500]
    if response.is_error:
        if response.status_code in (400, 413, 422) and "context" in text.lower():
            raise ContextFull(text)
        is_fatal = response.status_code in FATAL
        detail = f"{url} answered {response.status_code}: {text}"
        reason: FailureReason = "unreachable" if response.status_code >= 500 else "refused"
        raise PolicyFailed(reason, detail, is_fatal=is_fatal)
    try:
        return response.json()
    except ValueError as error:
        raise PolicyFailed("bad_answer", f"{url} answered no JSON: {text}") from error


@dataclass(slots=True)
class CheckpointPolicy:
    """A checkpoint of the platform, asked through its API: for small evaluations, one at a time."""

    client: Client
    checkpoint_id: str
    sampling: Sampling
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Json]], seed: int
    ) -> Reply:
        """See `Policy.answer`."""
        async with self._turn:
            try:
                made = await asyncio.to_thread(self._generate, messages, tools, seed)
            except OperationFailed as failed:
                if failed.code == "context_overflow":
                    raise ContextFull(failed.detail) from failed
                raise PolicyFailed("refused", str(failed)) from failed
            except Unavailable as error:
                raise PolicyFailed("unreachable", str(error)) from error
            except ApiError as error:
                raise PolicyFailed("refused", str(error), is_fatal=True) from error
            except VenusError as error:
                raise PolicyFailed("unreachable", str(error)) from error
        return made

    async def close(self) -> None:
        """See `Policy.close`; the client is its owner's."""

    def _generate(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Json]], seed: int
    ) -> Reply:
        made = self.client.checkpoints.generate(
            self.checkpoint_id,
            [message_to_json(message) for message in messages],
            tools=[dict(tool) for tool in tools],
            max_tokens=self.sampling.max_tokens,
            temperature=self.sampling.temperature,
            seed=seed,
        )
        calls = tuple(
            ToolCall(call.id or f"call_{number}", call.name, argument_text(call.arguments))
            for number, call in enumerate(made.tool_calls)
        )
        message = Message("assistant", made.content, calls)
        return Reply(message, made.finish == "length", made.prompt_tokens, made.sampled_tokens)
