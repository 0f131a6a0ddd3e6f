"""Plays one scripted case to its end, grades it, and compares with what the case expects."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from venusrl.env.host.cases import Case
from venusrl.env.host.episode import Played, Spoken, Stage, grade_group, play
from venusrl.env.host.manifest import Finding
from venusrl.env.host.ports import EnvironmentFault, InstanceKey, RolloutGrade
from venusrl.env.messages import Json, Message, Rollout, Task
from venusrl.env.values import Unscorable, Value

VALUE_TOLERANCE: Final = 1e-9
"""An expected value written in decimal equals the float that a reward computes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case went; without rollout and grade the environment failed, as a finding says."""

    findings: tuple[Finding, ...] = ()
    rollout: Rollout | None = None
    grade: RolloutGrade | None = None
    seconds: float = 0.0


async def play_case(stage: Stage, case: Case, task: Task, key: InstanceKey) -> Outcome:
    """Play one case. What goes wrong is a finding at its line."""

    async def speak(messages: Sequence[Message], turn: int) -> Spoken | str:
        if turn >= len(case.turns):
            return "turn_limit"
        scripted = case.turns[turn]
        return Spoken(scripted.message(task), scripted.finish)

    began = time.monotonic()
    try:
        played = await play(stage, key, task, speak)
        (grade,) = await grade_group(stage, [played.rollout], 0)
    except EnvironmentFault as fault:
        return Outcome((case.finding("", str(fault)),), seconds=time.monotonic() - began)
    findings = _replies(case, played)
    end = played.rollout.end
    if case.end is not None and end != case.end:
        findings.append(case.finding("/expect/end", f"ended {end}, not {case.end}"))
    findings += _compare(case, grade)
    return Outcome(tuple(findings), played.rollout, grade, time.monotonic() - began)


def _replies(case: Case, played: Played) -> list[Finding]:
    """Findings where the environment answered otherwise than the script expects."""
    findings = []
    for number, (turn, reply) in enumerate(zip(case.turns, played.replies, strict=False)):
        said = tuple(one.content for one in reply or ())
        if turn.replies is not None and said != turn.replies:
            detail = f"the environment answered {list(said)!r:.300}"
            findings.append(case.finding(f"/turns/{number}/replies", detail))
    return findings


def _compare(case: Case, grade: RolloutGrade) -> list[Finding]:
    found: dict[str, Value] = {**grade.components, "total": grade.total}
    findings = []
    for name, expected in case.expected.items():
        pointer = "/expect/total" if name == "total" else f"/expect/components/{name}"
        if name not in found:
            findings.append(case.finding(pointer, f"there is no component {name}"))
        elif not _agrees(found[name], expected):
            findings.append(case.finding(pointer, f"is {found[name]}, not {expected}"))
    return findings


def _agrees(value: Value, expected: Json) -> bool:
    if isinstance(expected, Mapping):
        return isinstance(value, Unscorable) and value.reason == expected.get("unscorable")
    if isinstance(value, Unscorable) or not isinstance(expected, (int, float)):
        return False
    return abs(value - expected) <= VALUE_TOLERANCE
