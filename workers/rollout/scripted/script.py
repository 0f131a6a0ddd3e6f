"""Scripts of the scripted engine: which answers it gives, per rollout and call. Read from JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from domain.engine import Finish, Refusal
from domain.ids import RolloutId


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One answer. `logprobs` empty: all -1.0; `versions` empty: the version when it started."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    finish: Finish = Finish.STOP
    delay_s: float = 0.0
    cached_tokens: int = 0
    error: str | None = None
    refusal: Refusal | None = None

    def __post_init__(self) -> None:
        """Vectors that are given have one entry per token."""
        assert len(self.logprobs) in (0, len(self.token_ids))
        assert len(self.versions) in (0, len(self.token_ids))


@dataclass(frozen=True, slots=True)
class Script:
    """Answers by end of the rollout id (longest match wins), `default` for the others.

    Each rollout walks through its answers call by call and stays at the last one. A sync to a
    version in `mismatched_versions` fails its probe.
    """

    default: tuple[ScriptedAnswer, ...] = ()
    by_rollout: Mapping[str, tuple[ScriptedAnswer, ...]] = field(default_factory=dict)
    mismatched_versions: frozenset[int] = frozenset()
    by_turn: bool = False
    """The call's number is the turn that the request's id ends with: engines that share a script go on
    where another one stopped."""
    kv_tokens: int = 0
    """Capacity that the engine's host tells; 0 leaves its pressure unknown."""

    def answer(self, rollout_id: RolloutId, call: int) -> ScriptedAnswer:
        """The answer to the n-th call (0-based) of a rollout."""
        ends = [end for end in self.by_rollout if rollout_id.endswith(end)]
        answers = self.by_rollout[max(ends, key=len)] if ends else self.default
        assert answers, f"the script has no answer for {rollout_id}"
        return answers[min(call, len(answers) - 1)]


def read_script(path: Path) -> Script:
    """Read `{"default": [...], "by_rollout": {END: [...]}, "mismatched_versions": [...],
    "by_turn": false, "kv_tokens": 0}`."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return Script(
        default=_answers(record.get("default", [])),
        by_rollout={end: _answers(a) for end, a in record.get("by_rollout", {}).items()},
        mismatched_versions=frozenset(int(v) for v in record.get("mismatched_versions", [])),
        by_turn=bool(record.get("by_turn", False)),
        kv_tokens=int(record.get("kv_tokens", 0)),
    )


def _answers(records: Sequence[Mapping[str, Any]]) -> tuple[ScriptedAnswer, ...]:
    return tuple(_answer(record) for record in records)


def _answer(record: Mapping[str, Any]) -> ScriptedAnswer:
    refusal = record.get("refusal")
    return ScriptedAnswer(
        token_ids=tuple(int(t) for t in record.get("token_ids", ())),
        logprobs=tuple(float(p) for p in record.get("logprobs", ())),
        versions=tuple(int(v) for v in record.get("versions", ())),
        finish=Finish(record.get("finish", "stop")),
        delay_s=float(record.get("delay_s", 0.0)),
        cached_tokens=int(record.get("cached_tokens", 0)),
        error=record.get("error"),
        refusal=None if refusal is None else Refusal(refusal),
    )
