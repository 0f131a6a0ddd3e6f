"""The host's end of judges: who is asked, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from venusrl.env.judge import JudgeAnswer, JudgeRequest, JudgeUnavailable
from venusrl.env.wire import Record, text_field


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
    """What an environment process asked so far; failures are no calls."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0


@dataclass(slots=True)
class MeteredJudge:
    """Serves `judge` frames and counts."""

    port: JudgePort
    use: JudgeUse = field(default_factory=JudgeUse)

    async def serve(self, frame: Record) -> Record:
        """The fields of the answer's frame."""
        judge = frame.get("judge")
        request = JudgeRequest(text_field(frame, "prompt"), None if judge is None else str(judge))
        try:
            answer = await self.port.ask(request)
        except JudgeUnavailable as error:
            self.use.failed += 1
            return {"error": {"reason": error.reason, "detail": error.detail}}
        self.use.calls += 1
        self.use.prompt_tokens += answer.prompt_tokens
        self.use.sampled_tokens += answer.sampled_tokens
        return {
            "ok": {
                "text": answer.text,
                "prompt_tokens": answer.prompt_tokens,
                "sampled_tokens": answer.sampled_tokens,
            }
        }
