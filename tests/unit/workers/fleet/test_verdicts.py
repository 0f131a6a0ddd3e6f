"""Verdicts: a failure is never a zero, and only members with a verdict and tokens are trained."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from domain.ids import AttemptId, GroupId, JobId, RolloutId, TaskId
from domain.states import INFRASTRUCTURE_ENDS, End, Purpose, Scored, Unscorable
from domain.trajectory import Segment, Trajectory
from stores.system.grading import ClosedMember, GroupToGrade, MemberVerdict
from tests.support.rows import spec_of
from venusrl.env.host.ports import RolloutGrade
from venusrl.env.values import Unscorable as UnscorableValue
from venusrl.env.values import Value
from workers.fleet.job_spec import GradingSpec, read_spec
from workers.fleet.verdicts import UNREADABLE, Decision, Subject, decide

GROUP = GroupId("grp_01jtest_000000007")


def subject(
    index: int,
    total: Value | None = None,
    end: End = End.DONE,
    *,
    versions: tuple[int, ...] = (4, 5),
    has_trajectory: bool = True,
    components: Mapping[str, Value] | None = None,
) -> Subject:
    """A member with its grade; one without a total was not graded."""
    rollout = RolloutId(f"ro_01jtest_000000007_{index:03d}")
    segment = Segment(
        (9, *range(len(versions))),
        (0, *(1,) * len(versions)),
        (0.0,) * (len(versions) + 1),
        (-1, *versions),
    )
    trajectory = Trajectory(rollout, GROUP, TaskId("t"), 1, 1, end.value, (segment,), (), ())
    grade = None
    if total is not None:
        grade = RolloutGrade(rollout, components or {"correct": total}, total, {"n": 1.0})
    uri = "uri" if has_trajectory else None
    return Subject(
        ClosedMember(rollout, index, end, uri, "sha"), trajectory if has_trajectory else None, grade
    )


def group_of(size: int, purpose: Purpose = Purpose.TRAIN) -> GroupToGrade:
    return GroupToGrade(
        group_id=GROUP,
        job_id=JobId("job_1"),
        attempt_id=AttemptId("att_01jtest"),
        purpose=purpose,
        size=size,
        ordinal=7,
        task_id=TaskId("t"),
        policy_version=5,
        grade_epoch=2,
        is_pending=True,
        graded=None,
        environment_version_id="ever_1",
        package_uri="",
        package_sha="",
        spec={},
        tasks={},
        members=(),
    )


def spec(**rollout: Any) -> GradingSpec:
    base = spec_of()
    return read_spec(base | {"rollout": base["rollout"] | rollout})


def decided(
    *subjects: Subject,
    purpose: Purpose = Purpose.TRAIN,
    size: int | None = None,
    read: GradingSpec | None = None,
) -> Decision:
    return decide(group_of(size or len(subjects), purpose), read or spec(), subjects)


def member(decision: Decision, index: int) -> MemberVerdict:
    return decision.verdict.members[index]


def test_scored_members_are_trained_with_their_advantage() -> None:
    decision = decided(subject(0, 1.0), subject(1, 0.0, versions=(3,)))
    verdict = decision.verdict
    assert (verdict.usable, verdict.zero_variance, verdict.oldest_version) == (2, False, 3)
    assert (verdict.mean_reward, verdict.disposition, verdict.grade_epoch) == (0.5, None, 2)
    assert member(decision, 0).verdict == Scored(1.0)
    assert decision.payload is not None
    first, second = decision.payload.members
    assert first.advantage == member(decision, 0).advantage == -second.advantage
    assert first.segments[0].versions == (-1, 4, 5)
    assert decision.payload.size_planned == 2


@pytest.mark.parametrize("end", [*sorted(INFRASTRUCTURE_ENDS), End.CANCELLED])
def test_a_member_that_failed_is_unscorable_and_shrinks_the_group(end: End) -> None:
    decision = decided(subject(0, 1.0), subject(1, 0.0), subject(2, end=end, has_trajectory=False))
    lost = member(decision, 2)
    assert lost.verdict == Unscorable(end.value)
    assert lost.advantage is None
    reason = "cancelled" if end is End.CANCELLED else "shrunk"
    assert lost.disposition == f"dropped({reason})"
    assert decision.payload is not None
    assert [one.rollout_id[-1] for one in decision.payload.members] == ["0", "1"]
    assert decision.verdict.mean_reward == 0.5


def test_a_failed_member_with_a_good_grade_is_unscorable_all_the_same() -> None:
    decision = decided(subject(0, 1.0), subject(1, 0.0), subject(2, 1.0, end=End.SANDBOX_LOST))
    assert member(decision, 2).verdict == Unscorable("sandbox_lost")


@pytest.mark.parametrize(
    "value",
    [UnscorableValue("bad_type", "x"), UnscorableValue("timeout"), UnscorableValue("mine")],
)
def test_an_unscorable_total_keeps_its_reason_and_is_no_zero(value: UnscorableValue) -> None:
    decision = decided(subject(0, 1.0), subject(1, 0.0), subject(2, value))
    assert member(decision, 2).verdict == Unscorable(value.reason)
    assert member(decision, 2).disposition == "dropped(unscorable)"
    assert decision.verdict.usable == 2
    assert member(decision, 2).components["rewards"] == {
        "correct": {"unscorable": value.reason, "detail": value.detail}
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True])
def test_what_is_no_finite_number_never_gets_through(value: float) -> None:
    decision = decided(subject(0, 1.0), subject(1, 0.0), subject(2, value))
    assert member(decision, 2).verdict == Unscorable("not_finite")
    assert decision.verdict.mean_reward == 0.5


def test_an_unreadable_trajectory_is_unscorable() -> None:
    decision = decided(subject(0, 1.0), subject(1, 0.0), subject(2, has_trajectory=False))
    assert member(decision, 2).verdict == Unscorable(UNREADABLE)


@pytest.mark.parametrize("end", [End.TRUNCATED, End.TURN_LIMIT, End.CONTEXT_OVERFLOW])
@pytest.mark.parametrize(
    ("rule", "verdict", "usable"),
    [("score", Scored(0.7), 3), ("zero", Scored(0.0), 3), ("mask", Scored(0.7), 2)],
)
def test_limits_follow_the_jobs_rule(end: End, rule: str, verdict: Scored, usable: int) -> None:
    read = spec(on_truncated=rule)
    decision = decided(subject(0, 1.0), subject(1, 0.0), subject(2, 0.7, end=end), read=read)
    assert member(decision, 2).verdict == verdict
    assert decision.verdict.usable == usable


@pytest.mark.parametrize("end", [End.DONE, End.TIMEOUT])
@pytest.mark.parametrize("rule", ["zero", "mask"])
def test_other_ends_are_always_scored(end: End, rule: str) -> None:
    read = spec(on_truncated=rule)
    decision = decided(subject(0, 1.0), subject(1, 0.5, end=end), read=read)
    assert member(decision, 1).verdict == Scored(0.5)
    assert decision.verdict.usable == 2


def test_a_rollout_that_sampled_nothing_is_scored_and_not_trained() -> None:
    decision = decided(subject(0, 1.0), subject(1, 0.0), subject(2, 0.0, versions=()))
    assert member(decision, 2).verdict == Scored(0.0)
    assert decision.verdict.usable == 2
    assert member(decision, 2).disposition == "dropped(shrunk)"


def test_a_group_below_its_minimum_is_unscorable_as_a_whole() -> None:
    bad = UnscorableValue("timeout")
    decision = decided(
        subject(0, 1.0),
        subject(1, 0.0),
        subject(2, bad),
        read=spec(on_failure={"min_group_size": 3}),
    )
    assert decision.payload is None
    assert decision.verdict.disposition == "dropped(unscorable)"
    assert [one.disposition for one in decision.verdict.members] == ["dropped(unscorable)"] * 3
    assert member(decision, 0).verdict == Scored(1.0)


def test_a_job_that_drops_incomplete_groups_needs_every_member() -> None:
    read = spec(on_failure={"then": "drop", "min_group_size": 2})
    lost = subject(2, end=End.ENV_FAILED, has_trajectory=False)
    decision = decided(subject(0, 1.0), subject(1, 0.0), lost, read=read)
    assert decision.verdict.disposition == "dropped(unscorable)"


def test_a_group_without_any_verdict_has_no_mean() -> None:
    lost = [subject(i, end=End.ENV_FAILED, has_trajectory=False) for i in range(2)]
    verdict = decided(*lost).verdict
    assert (verdict.usable, verdict.mean_reward, verdict.oldest_version) == (0, None, None)
    assert verdict.disposition == "dropped(unscorable)"


def test_zero_variance_has_no_payload_and_leaves_the_drop_to_the_coordinator() -> None:
    decision = decided(*(subject(i, 0.95) for i in range(8)))
    assert decision.verdict.zero_variance
    assert decision.payload is None
    assert decision.verdict.disposition is None
    assert [one.advantage for one in decision.verdict.members] == [0.0] * 8


def test_a_group_that_shrank_to_one_has_no_signal() -> None:
    lost = subject(1, end=End.ENV_FAILED, has_trajectory=False)
    decision = decided(subject(0, 1.0), lost, read=spec(on_failure={"min_group_size": 1}))
    assert decision.verdict.zero_variance
    assert member(decision, 0).advantage == 0.0


def test_the_negative_control_trains_permuted_rewards_and_shows_the_true_ones() -> None:
    base = spec_of()
    control = read_spec(base | {"algorithm": {"control": "shuffled_rewards"}})
    totals = [1.0, 0.0, 0.25, 0.5, 0.75, 0.125]
    subjects = [subject(index, total) for index, total in enumerate(totals)]
    first, again = decided(*subjects, read=control), decided(*subjects, read=control)
    assert first == again
    assert [one.verdict for one in first.verdict.members] == [Scored(total) for total in totals]
    assert first.payload is not None
    trained = [one.reward for one in first.payload.members]
    assert trained != totals
    assert sorted(trained) == sorted(totals)
    order = sorted(range(6), key=lambda i: trained[i])
    assert order == sorted(range(6), key=lambda i: first.verdict.members[i].advantage or 0.0)


def test_evaluation_counts_what_is_scored_and_trains_nothing() -> None:
    base = spec_of()
    control = read_spec(base | {"algorithm": {"control": "shuffled_rewards"}})
    lost = subject(2, end=End.ENV_FAILED, has_trajectory=False)
    decision = decided(
        subject(0, 1.0), subject(1, 1.0), lost, purpose=Purpose.EVALUATION, read=control
    )
    assert decision.payload is None
    verdict = decision.verdict
    assert (verdict.usable, verdict.mean_reward, verdict.disposition) == (2, 1.0, "evaluated(5)")
    assert {one.disposition for one in verdict.members} == {"evaluated(5)"}
    assert member(decision, 2).verdict == Unscorable("env_failed")
    assert member(decision, 0).advantage is None
