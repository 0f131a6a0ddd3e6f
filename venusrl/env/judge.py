"""The judge that an environment may ask: a language model that grades, reached through its host.

Every call is counted where it is made and where it is served. A judge that gives no answer is
`JudgeUnavailable`: the reward that asked becomes unscorable, whatever its code made of the failure,
and a try that asked during a turn ends as an infrastructure failure. It is never a zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

JUDGE_CALLS_MAX: Final = 64
"""Of one reward or one rollout; a loop that asks without end would only cost money."""

PROMPT_CHARS_MAX: Final = 1 << 20
"""One question; beyond it no context window follows."""

JudgeFailure: TypeAlias = Literal[
    "not_configured", "unreachable", "refused", "bad_answer", "exhausted"
]
"""Why there is no answer. `exhausted`: the limit of calls or of money is reached."""


class JudgeUnavailable(Exception):
    """No answer of the judge; the reward that asked is unscorable with `judge_` and the reason."""

    def __init__(self, reason: JudgeFailure, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: JudgeFailure = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """One question; `judge` None where the job has one judge only."""

    prompt: str
    judge: str | None = None


@dataclass(frozen=True, slots=True)
class JudgeAnswer:
    """What the judge said and what it cost."""

    text: str
    prompt_tokens: int = 0
    sampled_tokens: int = 0


class JudgeClient(Protocol):
    """A language model that grades, metered."""

    @property
    def calls(self) -> int:
        """Answers so far."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens of all questions and answers so far."""
        ...

    async def ask(self, prompt: str, *, judge: str | None = None) -> str:
        """The judge's answer to one prompt. Raises JudgeUnavailable."""
        ...


class NoJudge:
    """The judge of a job without judges."""

    calls = 0
    tokens = 0

    async def ask(self, prompt: str, *, judge: str | None = None) -> str:
        """Refuse."""
        raise JudgeUnavailable("not_configured", "no judge is configured")
