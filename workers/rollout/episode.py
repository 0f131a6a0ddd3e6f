"""The token record of one try while it grows, and every decision about how it ends. No I/O.

    opening | sampled 0 | observation 0 | sampled 1 | observation 1 | ...        one segment of ids
    mask 0  | mask 1    | mask 0        | mask 1    | ...

Ids are written only by append: sampled ones verbatim, rendered ones once. Nothing is tokenised
again, so within a segment the ids of every turn are an exact prefix of the next prompt; `drift`
counts breaches, and a rollout with one has no loss at all. Another segment begins where the history
is written anew: by the environment, or by a template that leaves earlier reasoning out, unless the
job keeps it. Context limits are decided here, before the engine is asked, and never after a final
answer.
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
from workers.rollout.token_record import Sampled, TokenRecord

CHARS_PER_TOKEN_MAX: Final = 128
"""No vocabulary has longer tokens. A message of more characters than the context can hold even so is
too long without being tokenised: a megabyte of tool output must not stall the other rollouts."""


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
class Intent:
    """A sampled turn that the environment has not answered yet."""

    turn: int
    sampled: Sampled
    parsed: ParsedAnswer


class Episode:
    """One try. `begin`, then for each turn `answer` and `observe`; each may return the ending."""

    def __init__(
        self, chat: ChatFormat, limits: RolloutLimits, keeps_history: bool = False
    ) -> None:
        """`keeps_history`: earlier reasoning stays in the prompt, whatever the template does."""
        self._chat = chat
        self._limits = limits
        self._keeps_history = keeps_history
        self._record = TokenRecord()
        self._tools: tuple[Mapping[str, Json], ...] = ()
        self._messages: list[Message] = []
        self._unanswered: tuple[Message, ...] = ()
        """A new history that the model has not answered yet."""
        self._rewrites: list[int] = []
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
    def finished_turns(self) -> int:
        """Turns that the environment has answered."""
        return self.turns - (self.intent is not None)

    @property
    def tool_s(self) -> float:
        """Seconds that the environment took for all answered turns."""
        return sum(span.tool_s for span in self._spans)

    @property
    def tokens(self) -> int:
        """Tokens of the current segment: what an engine holds for this rollout."""
        return self._record.tokens

    @property
    def segment(self) -> int:
        """Number of the current segment."""
        return self._record.number

    @property
    def is_empty(self) -> bool:
        """The opening rendered to nothing, which no engine can continue."""
        return not self._record.tokens

    @property
    def messages(self) -> tuple[dict[str, object], ...]:
        """The conversation for people and graders, opening first."""
        return tuple(dict(message_to_json(message)) for message in self._messages)

    @property
    def spans(self) -> tuple[TurnSpan, ...]:
        """Where each turn lies."""
        return tuple(self._spans)

    @property
    def rewrites(self) -> tuple[int, ...]:
        """Places in `messages` where the environment began the conversation anew."""
        return tuple(self._rewrites)

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest sampled token, None before there is one."""
        return self._oldest_version

    def segments(self) -> tuple[Segment, ...]:
        """The token record; without loss when a prompt did not continue the ids before it."""
        return self._record.segments(is_masked=self.drift > 0)

    def begin(
        self, opening: Sequence[dict[str, object]], tools: Sequence[dict[str, object]] = ()
    ) -> Ending | None:
        """Render the task's opening messages; `tools` are schemas for the chat format."""
        messages = _messages(opening)
        self._messages += messages
        self._tools = tuple(cast("Sequence[Mapping[str, Json]]", tools))
        if (ending := self._too_long(messages, "the opening")) is not None:
            return ending
        token_ids = self._chat.prompt(messages, self._tools)
        if not self._fits(len(token_ids)):
            return self._overflow(messages, "the opening", len(token_ids))
        self._record.append_context(token_ids)
        return None

    def prompt(self) -> tuple[int, ...]:
        """Ids for the engine; checks that they continue what the last turn was made of."""
        token_ids = self._record.token_ids
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
        self._record.append_sampled(sampled, self._chat.without_reasoning(sampled.token_ids))
        self._expected = self._record.token_ids
        if self._unanswered:
            self._rewrites.append(len(self._messages))
            self._messages += self._unanswered
            self._unanswered = ()
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
                segment=self._record.number,
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
        if reply.is_rewrite and self._keeps_history:
            raise BadRecord("the environment rewrites its history, which this job keeps")
        self._messages += () if reply.is_rewrite else messages
        self._spans[-1] = replace(self._spans[-1], tool_s=reply.tool_s)
        if reply.done:
            return Ending(End.DONE)
        if (ending := self._limit_after(intent)) is not None:
            return ending
        where = f"the reply of turn {intent.turn}"
        if (ending := self._too_long(messages, where)) is not None:
            return ending
        if reply.is_rewrite:
            return self._begin_anew(messages, where)
        return self._continue(intent, messages, where)

    def _limit_after(self, intent: Intent) -> Ending | None:
        limits = self._limits
        if intent.turn + 1 >= limits.max_turns:
            return Ending(End.TURN_LIMIT, f"{limits.max_turns} turns")
        if limits.max_tokens is not None and self.sampled_tokens >= limits.max_tokens:
            return Ending(End.TRUNCATED, "max_tokens")
        return None

    def _continue(self, intent: Intent, messages: tuple[Message, ...], where: str) -> Ending | None:
        record = self._record
        token_ids = self._chat.follow_up(intent.sampled.token_ids, messages)
        is_rewritten = self._drops_reasoning(messages) and record.later != record.token_ids
        used = len(record.later) if is_rewritten else record.tokens
        if not self._fits(len(token_ids), used):
            return self._overflow(messages, where, len(token_ids), used)
        if is_rewritten:
            record.begin_anew((*record.later, *token_ids))
            self._expected = record.token_ids
        else:
            record.append_context(token_ids)
            self._spans[-1] = replace(self._spans[-1], end=self.tokens)
        return None

    def _drops_reasoning(self, messages: Sequence[Message]) -> bool:
        """Templates leave reasoning out from the user's next message on, not within tool calls."""
        if self._keeps_history or not self._chat.drops_reasoning:
            return False
        return any(message.role == "user" for message in messages)

    def _begin_anew(self, messages: tuple[Message, ...], where: str) -> Ending | None:
        token_ids = self._chat.prompt(messages, self._tools)
        if not token_ids:
            raise BadRecord("the new history renders to nothing")
        if not self._fits(len(token_ids), used=0):
            return self._overflow(messages, where, len(token_ids), used=0)
        self._record.begin_anew(token_ids)
        self._expected = token_ids
        self._unanswered = messages
        return None

    def _fits(self, count: int, used: int | None = None) -> bool:
        """Whether at least one token can be sampled after so many behind the `used` ones."""
        return (self.tokens if used is None else used) + count + 1 <= self._limits.context_tokens

    def _too_long(self, messages: Sequence[Message], where: str) -> Ending | None:
        characters = sum(len(message.content) for message in messages)
        if characters <= self._limits.context_tokens * CHARS_PER_TOKEN_MAX:
            return None
        return self._overflow(messages, where, None)

    def _overflow(
        self,
        messages: Sequence[Message],
        where: str,
        token_count: int | None,
        used: int | None = None,
    ) -> Ending:
        """Name the message that takes most room."""
        size = "" if token_count is None else f" ({token_count} tokens with what came beside it)"
        left = self._limits.context_tokens - (self.tokens if used is None else used)
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


def _messages(records: Sequence[dict[str, object]]) -> tuple[Message, ...]:
    return messages_from_json(cast("Sequence[Json]", records))
