"""The token record of one try while it grows, and every decision about how it ends. No I/O.

    opening | sampled 0 | observation 0 | sampled 1 | observation 1 | ...        one segment of ids
    mask 0  | mask 1    | mask 0        | mask 1    | ...

Ids are written only by append: sampled ones verbatim, rendered ones once. Nothing is tokenised
again, so the ids of every turn are an exact prefix of the next prompt; `drift` counts breaches, and
a rollout with one has no loss at all. Context limits are decided here, before the engine is asked,
and never after a final answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from domain.states import End
from domain.trajectory import Segment, TurnSpan
from domain.wire import JournalTurn
from venusrl.env.messages import Json, Message
from venusrl.env.wire import BadRecord, message_to_json, messages_from_json
from workers.models.chat import ChatFormat, ParsedAnswer
from workers.rollout.job_spec import RolloutLimits

CHARS_PER_TOKEN_MAX: Final = 128
"""No vocabulary has longer tokens. A message of more characters than the context can hold even so is
too long without being tokenised: a megabyte of tool output must not stall the other rollouts."""

NO_VERSION: Final = -1
"""Version of a token that no policy sampled."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A natural end, with a cause where a person can act on it."""

    end: End
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens that the next turn may sample, and which limit says so."""

    max_tokens: int
    limit: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled turn as the engine, or the journal, gave it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: str
    generate_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Intent:
    """A sampled turn that the environment has not answered yet."""

    turn: int
    sampled: Sampled
    parsed: ParsedAnswer


class TokenBuffer:
    """Four vectors of one length that only grow."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    def __len__(self) -> int:
        return len(self._token_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All ids so far."""
        return tuple(self._token_ids)

    def append_context(self, token_ids: Sequence[int]) -> None:
        """Add ids that the model reads: no loss."""
        n = len(token_ids)
        self._token_ids += token_ids
        self._mask += [0] * n
        self._logprobs += [0.0] * n
        self._versions += [NO_VERSION] * n

    def append_sampled(self, sampled: Sampled) -> None:
        """Add ids that the policy sampled, its end token included: loss on each."""
        n = len(sampled.token_ids)
        assert n == len(sampled.logprobs) == len(sampled.versions)
        assert all(version >= 0 for version in sampled.versions), "a sampled token has a version"
        self._token_ids += sampled.token_ids
        self._mask += [1] * n
        self._logprobs += sampled.logprobs
        self._versions += sampled.versions

    def segment(self, is_masked: bool = False) -> Segment:
        """The record so far; masked: its ids stay, but nothing of it is trained."""
        n = len(self)
        return Segment(
            token_ids=self.token_ids,
            mask=(0,) * n if is_masked else tuple(self._mask),
            logprobs=(0.0,) * n if is_masked else tuple(self._logprobs),
            versions=(NO_VERSION,) * n if is_masked else tuple(self._versions),
        )


class Episode:
    """One try. `begin`, then for each turn `answer` and `observe`; each may return the ending."""

    def __init__(self, chat: ChatFormat, limits: RolloutLimits) -> None:
        self._chat = chat
        self._limits = limits
        self._buffer = TokenBuffer()
        self._messages: list[Message] = []
        self._spans: list[TurnSpan] = []
        self._expected: tuple[int, ...] = ()
        self._oldest_version: int | None = None
        self.sampled_tokens = 0
        self.drift = 0
        self.intent: Intent | None = None
        """The turn that waits for the environment; set by `answer`, taken by `observe`."""

    @property
    def turns(self) -> int:
        """Turns sampled so far."""
        return len(self._spans)

    @property
    def tokens(self) -> int:
        """Tokens of the whole rollout so far."""
        return len(self._buffer)

    @property
    def is_empty(self) -> bool:
        """The opening rendered to nothing, which no engine can continue."""
        return not len(self._buffer)

    @property
    def messages(self) -> tuple[dict[str, object], ...]:
        """The conversation for people and graders, opening first."""
        return tuple(dict(message_to_json(message)) for message in self._messages)

    @property
    def spans(self) -> tuple[TurnSpan, ...]:
        """Where each turn lies."""
        return tuple(self._spans)

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest sampled token, None before there is one."""
        return self._oldest_version

    def segment(self) -> Segment:
        """The token record; without loss when a prompt did not continue the ids before it."""
        return self._buffer.segment(is_masked=self.drift > 0)

    def begin(
        self, opening: Sequence[dict[str, object]], tools: Sequence[dict[str, object]] = ()
    ) -> Ending | None:
        """Render the task's opening messages; `tools` are schemas for the chat format."""
        messages = _messages(opening)
        self._messages += messages
        if (ending := self._too_long(messages, "the opening")) is not None:
            return ending
        token_ids = self._chat.prompt(messages, cast("Sequence[Mapping[str, Json]]", tools))
        if not self._fits(token_ids):
            return self._overflow(messages, "the opening", len(token_ids))
        self._buffer.append_context(token_ids)
        return None

    def prompt(self) -> tuple[int, ...]:
        """Ids for the engine; checks that they continue what the last turn was made of."""
        token_ids = self._buffer.token_ids
        if token_ids[: len(self._expected)] != self._expected:
            self.drift += 1
        return token_ids

    def budget(self) -> Budget:
        """How much the next turn may sample: prompt + max_tokens never exceeds the context."""
        limits = self._limits
        choices = [
            Budget(limits.max_tokens_per_turn, "max_tokens_per_turn"),
            Budget(limits.context_tokens - self.tokens, "context_tokens"),
        ]
        if limits.max_tokens is not None:
            choices.append(Budget(limits.max_tokens - self.sampled_tokens, "max_tokens"))
        return min(choices, key=lambda budget: budget.max_tokens)

    def answer(self, sampled: Sampled) -> Ending | None:
        """Take a sampled turn. A turn that its token limit cut ends the rollout."""
        turn, start = self.turns, self.tokens
        limit = self.budget().limit
        self._buffer.append_sampled(sampled)
        self._expected = self._buffer.token_ids
        self.sampled_tokens += len(sampled.token_ids)
        known = () if self._oldest_version is None else (self._oldest_version,)
        self._oldest_version = min((*known, *sampled.versions), default=None)
        parsed = self._chat.parse(sampled.token_ids, turn)
        self._messages.append(parsed.told)
        finish = self._finish_of(sampled)
        self._spans.append(
            TurnSpan(
                turn=turn,
                start=start,
                sampled_end=self.tokens,
                end=self.tokens,
                tool_calls=len(parsed.message.tool_calls),
                finish=finish,
                generate_s=sampled.generate_s,
                tool_s=0.0,
            )
        )
        if finish == "abort":
            return Ending(End.TIMEOUT, f"{self._limits.wall_s:g} s")
        if finish == "length":
            return Ending(End.TRUNCATED, limit)
        self.intent = Intent(turn, sampled, parsed)
        return None

    def observe(self, reply: JournalTurn) -> Ending | None:
        """Take the environment's reply to the open intent."""
        intent = self.intent
        assert intent is not None, "a reply to no open turn"
        if reply.turn != intent.turn:
            raise BadRecord(f"a reply to turn {reply.turn}, not to turn {intent.turn}")
        self.intent = None
        messages = _messages(reply.messages)
        self._messages += messages
        if reply.done:
            self._close_span(reply)
            return Ending(End.DONE)
        ending = self._continue(intent, messages)
        self._close_span(reply)
        return ending

    def _continue(self, intent: Intent, messages: tuple[Message, ...]) -> Ending | None:
        limits, turn = self._limits, intent.turn
        if turn + 1 >= limits.max_turns:
            return Ending(End.TURN_LIMIT, f"{limits.max_turns} turns")
        if limits.max_tokens is not None and self.sampled_tokens >= limits.max_tokens:
            return Ending(End.TRUNCATED, "max_tokens")
        where = f"the reply of turn {turn}"
        if (ending := self._too_long(messages, where)) is not None:
            return ending
        token_ids = self._chat.follow_up(intent.sampled.token_ids, messages)
        if not self._fits(token_ids):
            return self._overflow(messages, where, len(token_ids))
        self._buffer.append_context(token_ids)
        return None

    def _fits(self, token_ids: Sequence[int]) -> bool:
        """Whether at least one token can be sampled after these."""
        return self.tokens + len(token_ids) + 1 <= self._limits.context_tokens

    def _too_long(self, messages: Sequence[Message], where: str) -> Ending | None:
        characters = sum(len(message.content) for message in messages)
        if characters <= self._limits.context_tokens * CHARS_PER_TOKEN_MAX:
            return None
        return self._overflow(messages, where, None)

    def _overflow(self, messages: Sequence[Message], where: str, token_count: int | None) -> Ending:
        """Name the message that takes most room."""
        size = "" if token_count is None else f" ({token_count} tokens with what came beside it)"
        left = self._limits.context_tokens - self.tokens
        if not messages:
            return Ending(End.CONTEXT_OVERFLOW, f"{where} leaves no room: {left} tokens are left")
        number, guilty = max(enumerate(messages), key=lambda pair: len(pair[1].content))
        call = f", call {guilty.tool_call_id}" if guilty.tool_call_id else ""
        cause = (
            f"{where}: message {number} ({guilty.role}{call}) has"
            f" {len(guilty.content)} characters{size}; {left} of"
            f" {self._limits.context_tokens} tokens were left"
        )
        return Ending(End.CONTEXT_OVERFLOW, cause)

    def _finish_of(self, sampled: Sampled) -> str:
        """`stop` whenever the answer is whole, also when its end token was the last that fitted."""
        ids = sampled.token_ids
        if sampled.finish == "length" and ids and ids[-1] in self._chat.stop_token_ids:
            return "stop"
        return sampled.finish

    def _close_span(self, reply: JournalTurn) -> None:
        self._spans[-1] = replace(self._spans[-1], end=self.tokens, tool_s=reply.tool_s)


def _messages(records: Sequence[dict[str, object]]) -> tuple[Message, ...]:
    return messages_from_json(cast("Sequence[Json]", records))
