"""Chat completions as OpenAI-compatible servers have them: messages, answers, when to ask again.

For judges on nodes and for models of local evaluations; who sends the request is theirs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from venusrl.env.messages import Message, ToolCall

TRIES_MAX: Final = 6
"""With the back-off below about half a minute: a restart of a server, a burst of others."""

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 16.0
RETRY_AFTER_MAX_S: Final = 60.0
"""Longer waits that a server asks for are cut: whoever waits has a limit of its own."""

RETRIED: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses that say nothing against the request."""

TOKENS_MAX: Final = 1 << 31
"""No answer has more; a count beyond is no count."""


class BadCompletion(ValueError):
    """The document is no chat completion."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: its message, whether it was cut, and its tokens where the other side says so."""

    message: Message
    is_cut: bool = False
    prompt_tokens: int | None = None
    sampled_tokens: int | None = None


def wire_message(message: Message) -> dict[str, Any]:
    """A message as chat completions have it."""
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        record["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        record["tool_call_id"] = message.tool_call_id
    return record


def read_completion(document: Any) -> Reply:
    """The first choice of an answer. Raises BadCompletion for what is none."""
    try:
        choice = document["choices"][0]
        said = choice["message"]
        content = said.get("content") or ""
        calls = tuple(
            ToolCall(
                str(call.get("id") or f"call_{number}"),
                str(call["function"]["name"]),
                argument_text(call["function"].get("arguments")),
            )
            for number, call in enumerate(said.get("tool_calls") or ())
        )
        usage = document.get("usage") or {}
        counts = (_count(usage.get(one)) for one in ("prompt_tokens", "completion_tokens"))
        is_cut = choice.get("finish_reason") == "length"
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadCompletion(f"no chat completion: {error!r}") from error
    if not isinstance(content, str):
        raise BadCompletion(f"no chat completion: its content is a {type(content).__name__}")
    return Reply(Message("assistant", content, calls), is_cut, *counts)


def argument_text(raw: Any) -> str:
    """Arguments are text; some servers send the object itself."""
    return raw if isinstance(raw, str) else json.dumps({} if raw is None else raw)


def pause_s(
    attempt: int,
    retry_after: str | None,
    draw: Callable[[float, float], float],
    first_s: float = BACKOFF_FIRST_S,
) -> float:
    """Seconds before the next try: doubled each time, drawn from its upper half, or what the server
    asks for if that is longer."""
    longest = min(BACKOFF_MAX_S, first_s * 2**attempt)
    pause = draw(longest / 2, longest)
    # A date instead of seconds is left to the back-off: clocks differ.
    if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
        pause = max(pause, min(float(retry_after), RETRY_AFTER_MAX_S))
    return pause


def _count(raw: Any) -> int | None:
    is_count = isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw < TOKENS_MAX
    return raw if is_count else None
