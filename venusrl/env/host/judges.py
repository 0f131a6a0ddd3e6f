"""The host's end of judges: who is asked, and what it cost, by rollout and judge.

Counted here and not in the environment process, which runs user code and may be started again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from venusrl.env.judge import (
    JUDGE_CALLS_MAX,
    PROMPT_CHARS_MAX,
    JudgeAnswer,
    JudgeRequest,
    JudgeUnavailable,
)
from venusrl.env.wire import Record, text_field

SUBJECT_CALLS_MAX: Final = 16 * JUDGE_CALLS_MAX
"""Calls of one rollout over all of its rewards: the environment process counts each of them alone,
and is made of user code."""


class JudgePort(Protocol):
    """Where questions go."""

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        """One answer. Raises JudgeUnavailable."""
        ...


class NoJudges:
    """The port where none is configured."""

    async def ask(self, request: JudgeRequest) -> JudgeAnswer:
        """Refuse with the typed reason."""
        raise JudgeUnavailable("not_configured", "no judge is configured")


@dataclass(slots=True)
class JudgeUse:
    """What was asked so far; failures are no calls."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0

    def add(self, other: JudgeUse) -> None:
        """Count another's use too."""
        self.calls += other.calls
        self.failed += other.failed
        self.prompt_tokens += other.prompt_tokens
        self.sampled_tokens += other.sampled_tokens


JudgeUses: TypeAlias = dict[str, JudgeUse]
"""Use by judge; "" is the judge of a job that has only one, when it was not named."""


def added(uses: JudgeUses, more: Mapping[str, JudgeUse]) -> JudgeUses:
    """`uses` with `more` counted in."""
    for name, use in more.items():
        uses.setdefault(name, JudgeUse()).add(use)
    return uses


@dataclass(slots=True)
class MeteredJudge:
    """Serves `judge` frames and counts."""

    port: JudgePort
    use: JudgeUse = field(default_factory=JudgeUse)

    async def serve(self, frame: Record, subject: JudgeUses | None = None) -> Record:
        """The fields of the answer's frame; `subject` are the uses of the rollout that asks."""
        judge = frame.get("judge")
        request = JudgeRequest(text_field(frame, "prompt"), None if judge is None else str(judge))
        uses = {} if subject is None else subject
        try:
            answer = await self._ask(request, uses)
        except JudgeUnavailable as error:
            # A name that does not exist comes from user code: it must not grow the table.
            self._count(uses, request, JudgeUse(failed=1), error.reason != "not_configured")
            return {"error": {"reason": error.reason, "detail": error.detail}}
        spent = JudgeUse(1, 0, answer.prompt_tokens, answer.sampled_tokens)
        self._count(uses, request, spent, True)
        return {
            "ok": {
                "text": answer.text,
                "prompt_tokens": answer.prompt_tokens,
                "sampled_tokens": answer.sampled_tokens,
            }
        }

    async def _ask(self, request: JudgeRequest, uses: Mapping[str, JudgeUse]) -> JudgeAnswer:
        if sum(use.calls + use.failed for use in uses.values()) >= SUBJECT_CALLS_MAX:
            raise JudgeUnavailable("exhausted", f"more than {SUBJECT_CALLS_MAX} calls")
        if len(request.prompt) > PROMPT_CHARS_MAX:
            raise JudgeUnavailable("refused", f"more than {PROMPT_CHARS_MAX} characters")
        return await self.port.ask(request)

    def _count(self, uses: JudgeUses, request: JudgeRequest, spent: JudgeUse, known: bool) -> None:
        self.use.add(spent)
        uses.setdefault((request.judge or "") if known else "", JudgeUse()).add(spent)
