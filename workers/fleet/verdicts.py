"""From grades to verdicts, advantages and the group's payload. Pure: no I/O, no clock.

| a member | its verdict | counts for training |
|---|---|---|
| ended for an infrastructure reason, or cancelled | unscorable(its end) | no: the group shrinks |
| its trajectory cannot be read | unscorable(trajectory_unreadable) | no |
| a weighted component is unscorable | unscorable(that reason) | no |
| ended by a limit, `on_truncated: zero` | scored(0) | yes |
| ended by a limit, `on_truncated: mask` | scored(its total) | no |
| anything else | scored(its total) | yes, if it sampled a token |

A failure is never a zero; a zero is only what a reward said, or what the job asked for.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from domain.advantage import Advantages, group_advantages
from domain.ids import GroupId, RolloutId, TaskId
from domain.states import (
    INFRASTRUCTURE_ENDS,
    DropReason,
    End,
    Purpose,
    Scored,
    Unscorable,
    Verdict,
    dropped,
    evaluated,
)
from domain.trajectory import GroupPayload, TrainRollout, Trajectory
from stores.system.grading import (
    ClosedMember,
    GroupToGrade,
    GroupVerdict,
    JudgeCount,
    MemberVerdict,
)
from venusrl.env.host.ports import RolloutGrade
from venusrl.env.values import Unscorable as UnscorableValue
from workers.fleet.job_spec import Control, GradingSpec, OnTruncated
from workers.fleet.judged import counts_of, from_metrics, named

LIMIT_ENDS: Final = frozenset({End.TRUNCATED, End.TURN_LIMIT, End.CONTEXT_OVERFLOW})
"""Ends that `on_truncated` is about."""

UNREADABLE: Final = "trajectory_unreadable"
"""Reason of a member whose stored trajectory is missing or damaged."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One member with what grading found of it."""

    member: ClosedMember
    trajectory: Trajectory | None
    grade: RolloutGrade | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome for a group; `payload` is there when the group may be trained."""

    verdict: GroupVerdict
    payload: GroupPayload | None


@dataclass(frozen=True, slots=True)
class _Judged:
    subject: Subject
    verdict: Verdict
    counts: bool


def is_gradable(member: ClosedMember) -> bool:
    """Whether rewards may look at it: it ended by itself and left a trajectory."""
    is_broken = member.end in INFRASTRUCTURE_ENDS or member.end is End.CANCELLED
    return not is_broken and member.trajectory_uri is not None


def decide(group: GroupToGrade, spec: GradingSpec, subjects: Sequence[Subject]) -> Decision:
    """Verdicts of all members, in index order, and the payload of those that count."""
    judged = [_judge(group, spec, subject) for subject in subjects]
    counting = [one for one in judged if one.counts]
    totals = [one.verdict.value for one in counting if isinstance(one.verdict, Scored)]
    if group.purpose is Purpose.EVALUATION:
        scored = [one.verdict.value for one in judged if isinstance(one.verdict, Scored)]
        return Decision(_evaluation_verdict(group, spec, judged, scored), None)
    trained = _controlled(spec, group.group_id, group.ordinal, totals)
    advantages = group_advantages(spec.algorithm.advantage, trained)
    is_enough = len(counting) >= spec.least_usable(group.size) and len(counting) > 0
    oldest = min((version for one in counting for version in _versions(one)), default=None)
    verdict = GroupVerdict(
        group_id=group.group_id,
        grade_epoch=group.grade_epoch,
        usable=len(counting),
        zero_variance=advantages.zero_variance,
        oldest_version=oldest,
        mean_reward=math.fsum(totals) / len(totals) if totals else None,
        payload_uri=None,
        payload_sha=None,
        disposition=None if is_enough else dropped(DropReason.UNSCORABLE),
        members=_member_verdicts(spec, judged, advantages, is_enough),
    )
    if not is_enough or advantages.zero_variance:
        return Decision(verdict, None)
    return Decision(verdict, _payload(group, counting, trained, advantages))


def _judge(group: GroupToGrade, spec: GradingSpec, subject: Subject) -> _Judged:
    member, trajectory, grade = subject.member, subject.trajectory, subject.grade
    if member.end in INFRASTRUCTURE_ENDS or member.end is End.CANCELLED:
        return _Judged(subject, Unscorable(member.end.value), counts=False)
    if trajectory is None or grade is None:
        return _Judged(subject, Unscorable(UNREADABLE), counts=False)
    rule = spec.rollout.on_truncated if member.end in LIMIT_ENDS else OnTruncated.SCORE
    has_tokens = any(any(segment.mask) for segment in trajectory.segments)
    if rule is OnTruncated.ZERO and group.purpose is Purpose.TRAIN:
        return _Judged(subject, Scored(0.0), counts=has_tokens)
    total = grade.total
    if isinstance(total, UnscorableValue):
        return _Judged(subject, Unscorable(total.reason), counts=False)
    if isinstance(total, bool) or not math.isfinite(total):
        return _Judged(subject, Unscorable("not_finite"), counts=False)
    return _Judged(subject, Scored(total), counts=has_tokens and rule is not OnTruncated.MASK)


def _controlled(
    spec: GradingSpec, group_id: GroupId, ordinal: int, totals: Sequence[float]
) -> list[float]:
    """What is trained: the totals, or under the negative control a permutation of them.

    Seeded by job seed and ordinal: a repeated grading permutes alike. Rows keep the true totals.
    """
    trained = list(totals)
    if spec.algorithm.control is Control.SHUFFLED_REWARDS:
        random.Random(f"{spec.seed}:{group_id}:{ordinal}").shuffle(trained)
    return trained


def _versions(judged: _Judged) -> list[int]:
    segments = judged.subject.trajectory.segments if judged.subject.trajectory else ()
    return [s.oldest_version for s in segments if s.oldest_version is not None]


def _member_verdicts(
    spec: GradingSpec, judged: Sequence[_Judged], advantages: Advantages, is_enough: bool
) -> tuple[MemberVerdict, ...]:
    values = iter(advantages.values)
    return tuple(
        MemberVerdict(
            rollout_id=one.subject.member.rollout_id,
            verdict=one.verdict,
            advantage=next(values) if one.counts else None,
            disposition=None if one.counts and is_enough else dropped(_reason(one)),
            components=_components(spec, one.subject),
            judges=_judges(spec, one.subject),
        )
        for one in judged
    )


def _reason(judged: _Judged) -> DropReason:
    """Why a member is not trained; those that would have counted go with their group."""
    end = judged.subject.member.end
    if end is End.CANCELLED:
        return DropReason.CANCELLED
    if end in INFRASTRUCTURE_ENDS or (isinstance(judged.verdict, Scored) and not judged.counts):
        return DropReason.SHRUNK
    return DropReason.UNSCORABLE


def _evaluation_verdict(
    group: GroupToGrade, spec: GradingSpec, judged: Sequence[_Judged], scored: Sequence[float]
) -> GroupVerdict:
    step = evaluated(group.policy_version)
    return GroupVerdict(
        group_id=group.group_id,
        grade_epoch=group.grade_epoch,
        usable=len(scored),
        zero_variance=False,
        oldest_version=min((v for one in judged for v in _versions(one)), default=None),
        mean_reward=math.fsum(scored) / len(scored) if scored else None,
        payload_uri=None,
        payload_sha=None,
        disposition=step,
        members=tuple(
            MemberVerdict(
                rollout_id=one.subject.member.rollout_id,
                verdict=one.verdict,
                advantage=None,
                disposition=step,
                components=_components(spec, one.subject),
                judges=_judges(spec, one.subject),
            )
            for one in judged
        ),
    )


def _judges(spec: GradingSpec, subject: Subject) -> tuple[JudgeCount, ...]:
    """All that the member asked of judges, in its turns and in this grading."""
    trajectory, grade = subject.trajectory, subject.grade
    turns = {} if trajectory is None else from_metrics(trajectory.metrics)
    return counts_of(
        named(turns, spec.judges), named({} if grade is None else grade.judges, spec.judges)
    )


def _components(spec: GradingSpec, subject: Subject) -> Mapping[str, object]:
    """Rewards, metrics, full marks and judges as JSON.

    An unscorable component is an object with its reason.
    """
    grade = subject.grade
    if grade is None:
        return {}
    rewards = {
        name: {"unscorable": value.reason, "detail": value.detail}
        if isinstance(value, UnscorableValue)
        else value
        for name, value in grade.components.items()
    }
    shown: dict[str, object] = {
        "rewards": rewards,
        "metrics": dict(grade.metrics),
        "full_marks": grade.full_marks,
    }
    if counts := _judges(spec, subject):
        shown["judges"] = [asdict(count) for count in counts]
    return shown


def _payload(
    group: GroupToGrade,
    counting: Sequence[_Judged],
    trained: Sequence[float],
    advantages: Advantages,
) -> GroupPayload:
    members = []
    for one, reward, advantage in zip(counting, trained, advantages.values, strict=True):
        trajectory = one.subject.trajectory
        assert trajectory is not None, "a member that counts has tokens"
        rollout_id: RolloutId = one.subject.member.rollout_id
        members.append(TrainRollout(rollout_id, reward, advantage, trajectory.segments))
    return GroupPayload(group.group_id, TaskId(group.task_id), group.size, tuple(members))
