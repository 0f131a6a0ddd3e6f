"""The turn journal of one try (`protocol.md` section 3): intents before effects, replies once.

    intent 0 | reply 0 + snapshot 0 | intent 1 | reply 1 + snapshot 1 | ...

Only the last turn may lack its reply. Observation and snapshot are one record. The journal lives in
memory: a `process` sandbox dies with the node agent, so a journal that outlived it would describe
effects that no longer exist.
"""

from dataclasses import dataclass, replace
from typing import Final

from domain.wire import JournalTurn
from venusrl.env.messages import Json, Message

TURNS_MAX: Final = 10_000
"""Turns of one try; above every turn limit that an environment may ask for."""


class IntentRefused(ValueError):
    """The intent contradicts the journal: other tokens for a known turn, or a turn out of order."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What a host sampled for one turn."""

    turn: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What the environment answered, and its state afterwards."""

    messages: tuple[dict[str, object], ...]
    done: bool
    tool_s: float
    state: Json
    is_rewrite: bool = False
    """The messages replace the conversation."""


class Journal:
    """All turns of one try, its newest snapshot, and the conversation that a restore needs."""

    def __init__(self, opening: tuple[Message, ...]) -> None:
        self.state: Json = None
        self.history: list[Message] = list(opening)
        """Prompt, answers and replies up to the last recorded turn."""
        self._turns: list[JournalTurn] = []

    @property
    def turns(self) -> tuple[JournalTurn, ...]:
        """Every turn so far; only the last one may wait for its reply."""
        return tuple(self._turns)

    @property
    def is_waiting(self) -> bool:
        """Whether an intent has no reply."""
        return bool(self._turns) and not self._turns[-1].replied

    @property
    def tool_s(self) -> float:
        """Seconds that all replies took."""
        return sum(turn.tool_s for turn in self._turns)

    def turn(self, number: int) -> JournalTurn:
        """One turn that was journalled."""
        return self._turns[number]

    def intend(self, intent: Intent) -> bool:
        """Journal an intent; False when the same one is known. Raises IntentRefused."""
        if intent.turn < len(self._turns):
            known = self._turns[intent.turn]
            if known.token_ids != intent.token_ids:
                raise IntentRefused(f"turn {intent.turn} is journalled with other tokens")
            return False
        if intent.turn != len(self._turns) or self.is_waiting or intent.turn >= TURNS_MAX:
            raise IntentRefused(f"turn {intent.turn} where {len(self._turns)} is next")
        if self._turns and self._turns[-1].done:
            raise IntentRefused("the episode is over")
        self._turns.append(
            JournalTurn(
                turn=intent.turn,
                token_ids=intent.token_ids,
                logprobs=intent.logprobs,
                versions=intent.versions,
                finish=intent.finish,
                replied=False,
                messages=(),
                done=False,
                tool_s=0.0,
            )
        )
        return True

    def record(self, reply: Reply, spoken: tuple[Message, ...]) -> None:
        """Record the reply to the open intent; `spoken` is what it adds to the conversation.

        After a rewrite the conversation is the reply's messages alone: `spoken` is all of it.
        """
        assert self.is_waiting, "a reply to no open turn"
        self._turns[-1] = replace(
            self._turns[-1],
            replied=True,
            messages=reply.messages,
            done=reply.done,
            tool_s=reply.tool_s,
            is_rewrite=reply.is_rewrite,
        )
        self.state = reply.state
        self.history = [*(() if reply.is_rewrite else self.history), *spoken]
