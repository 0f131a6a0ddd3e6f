"""What every chat format offers: messages become ids to append, sampled ids become a message.

A format never renders anew what was sampled: it says what comes next, so the prompt of every turn
has the previous turn's ids as an exact prefix. Where the family's template leaves earlier reasoning
out (`drops_reasoning`), `without_reasoning` cuts it out of the sampled ids themselves.
Text made here is for parsing and for people.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

from venusrl.env.messages import Json, Message

CALLS_MAX: Final = 32
"""Tool calls read from one answer; more are one parse error, so a looping model costs little."""


class ParseReason(StrEnum):
    """Why a tool call could not be read."""

    UNTERMINATED = "unterminated"
    EMPTY = "empty"
    INVALID_JSON = "invalid_json"
    NOT_A_CALL = "not_a_call"
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class ParseError:
    """One malformed tool call; it stays among the message's calls, so its id gets one reply."""

    call_id: str
    reason: ParseReason
    detail: str


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The assistant message of a turn, and what was wrong with its tool calls, in call order."""

    message: Message
    errors: tuple[ParseError, ...] = ()

    @property
    def told(self) -> Message:
        """The message as the environment and the record get it: unreadable calls say why."""
        if not self.errors:
            return self.message
        why = {error.call_id: f"{error.reason.value}: {error.detail}" for error in self.errors}
        calls = tuple(replace(call, error=why.get(call.id)) for call in self.message.tool_calls)
        return replace(self.message, tool_calls=calls)


class ChatFormat(Protocol):
    """How one model family writes conversations."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer; they are part of it."""
        ...

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Json]] = ()
    ) -> tuple[int, ...]:
        """Ids of the first prompt, up to where the model speaks. `tools` are JSON schemas."""
        ...

    def follow_up(self, sampled: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """Ids to append after the sampled ids of a turn: its missing closing, then `messages`."""
        ...

    def parse(self, sampled: Sequence[int], turn: int) -> ParsedAnswer:
        """Read the sampled ids of turn `turn`; call ids derive from it."""
        ...

    @property
    def drops_reasoning(self) -> bool:
        """Whether the template leaves reasoning out once a later message of the user came."""
        ...

    def without_reasoning(self, sampled: Sequence[int]) -> tuple[int, ...]:
        """Sampled ids of an answer as the template shows them later."""
        ...


def call_id(turn: int, ordinal: int) -> str:
    """Id of the n-th tool call of a turn; the same ids always give the same id."""
    return f"call_{turn}_{ordinal}"
