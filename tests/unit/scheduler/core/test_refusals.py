"""What `accept` refuses, by which identity, and that it is counted."""

from dataclasses import replace

import pytest

from domain.events import (
    CheckpointWritten,
    DesiredChanged,
    EngineSynced,
    Event,
    GradeFailed,
    GroupGraded,
    HostJoined,
    HostLost,
    JobSubmitted,
    PayloadLost,
    RolloutClosed,
    SandboxReady,
    StepCommitted,
    TrainerFailed,
    TrainerReady,
    TryFailed,
    TurnFinished,
)
from domain.ids import AttemptId, CheckpointId, JobId, node_host_id
from domain.states import Desired, End, HostKind
from scheduler.core.records import SandboxState
from scheduler.core.refusals import RefusalReason
from scheduler.core.state import ENDED_MAX
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import (
    Bench,
    closed,
    engine_id,
    gid,
    policy,
    rid,
    trainer_id,
)

OTHER = AttemptId("att_z")


def turn(try_: int = 1, hop: int = 1, number: int = 1) -> TurnFinished:
    return TurnFinished(rid(0), try_, hop, number, 10, 10, 0, 0.0)


@pytest.mark.parametrize(
    "event",
    [
        DesiredChanged(JobId("job_z"), Desired.PAUSE, 9),
        HostJoined(engine_id(0, plan("z")), 1, HostKind.ENGINE, OTHER, 1),
        HostLost(engine_id(0, plan("z")), 1, "x"),
        HostLost(node_host_id(5), 1, "x"),
        replace(turn(), rollout_id=rid(0, 0, "z")),
        replace(turn(), rollout_id=rid(0, 9)),
        GroupGraded(gid(99), 1, 2, False, 0, 0.5),
        EngineSynced(engine_id(9), 1, 1),
        StepCommitted(OTHER, 1, policy(1)),
        TrainerFailed(OTHER, "x", "y"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_foreign_events_are_refused(event: Event) -> None:
    bench = Bench.running()
    assert bench.refusal(event).reason is RefusalReason.FOREIGN
    assert bench.core.refusals[RefusalReason.FOREIGN] == 1


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (turn(try_=2), RefusalReason.TRY),
        (turn(hop=2), RefusalReason.HOP),
        (TryFailed(rid(0), 2, 1, End.ENV_FAILED, "x"), RefusalReason.TRY),
        (TryFailed(rid(0), 1, 0, End.ENV_FAILED, "x"), RefusalReason.HOP),
        (EngineSynced(engine_id(), 9, 1), RefusalReason.EPOCH),
        (EngineSynced(engine_id(), 1, 0), RefusalReason.DUPLICATE),
        (TrainerReady(plan().attempt_id, trainer_id(), 9, policy(0)), RefusalReason.EPOCH),
        (StepCommitted(plan().attempt_id, 2, policy(2)), RefusalReason.STEP),
        (StepCommitted(plan().attempt_id, 0, policy(0)), RefusalReason.DUPLICATE),
        (PayloadLost(plan().attempt_id, 1, gid(0), "x"), RefusalReason.DUPLICATE),
        (CheckpointWritten(plan().attempt_id, -1, CheckpointId("c")), RefusalReason.DUPLICATE),
        (GradeFailed(gid(0), 1, "x"), RefusalReason.GRADE_EPOCH),
        (JobSubmitted(plan(), 1), RefusalReason.DUPLICATE),
        (
            JobSubmitted(replace(plan(), attempt_id=AttemptId("att_n")), 2),
            RefusalReason.ACTIVE,
        ),
        (DesiredChanged(plan().job_id, Desired.RUN, 1), RefusalReason.DUPLICATE),
        (DesiredChanged(plan().job_id, Desired.PAUSE, 0), RefusalReason.GENERATION),
    ],
)
def test_late_and_repeated_events_are_refused_with_their_reason(
    event: Event, reason: RefusalReason
) -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    assert bench.refusal(event).reason is reason


def test_a_repeated_turn_is_a_duplicate() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    bench.feed(turn())
    assert bench.refusal(turn()).reason is RefusalReason.DUPLICATE


def test_a_turn_of_a_lost_placement_is_refused_before_the_next_one() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    bench.lost(engine_id())
    assert bench.refusal(turn()).reason is RefusalReason.HOP


def test_a_close_of_a_lost_placement_counts_because_it_is_committed() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    bench.lost(engine_id())
    bench.close(bench.rollout(0))
    assert bench.rollout(0).end is End.DONE


def test_a_late_rollout_does_not_reopen_a_closed_one() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    bench.close(bench.rollout(0))
    assert bench.refusal(turn()).reason is RefusalReason.CLOSED
    assert bench.refusal(closed(bench.rollout(0))).reason is RefusalReason.CLOSED


def test_a_close_of_an_old_hop_is_refused_unless_the_leader_read_the_row() -> None:
    bench = Bench.running(engines=2)
    bench.ready(bench.rollout(0))
    late: RolloutClosed = closed(bench.rollout(0))
    bench.lost(engine_id(0))
    assert bench.refusal(late).reason is RefusalReason.HOP
    bench.feed(replace(late, reread=True))
    assert bench.rollout(0).end is End.DONE


def test_a_node_that_cannot_fork_a_later_try_ends_it_without_knowing_its_hop() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    bench.fail(bench.rollout(0))
    bench.tick(60.0)
    assert (bench.rollout(0).try_, bench.rollout(0).sandbox) == (2, SandboxState.ASKED)
    assert bench.rollout(0).hop > 0
    bench.feed(TryFailed(rid(0), 2, 0, End.ENV_FAILED, "its setup failed"))
    assert bench.rollout(0).failed_tries == 2


def test_while_the_cores_own_close_is_on_its_way_other_facts_are_refused() -> None:
    bench = Bench.running(plan(tries=1))
    bench.ready(bench.rollout(0))
    bench.fail(bench.rollout(0))
    again = TryFailed(rid(0), 1, 1, End.ENV_FAILED, "x")
    assert bench.refusal(again).reason is RefusalReason.CLOSED
    bench.close(bench.rollout(0), None, End.ENV_FAILED)
    assert bench.rollout(0).end is End.ENV_FAILED


def test_repeated_verdicts_are_duplicates() -> None:
    bench = Bench.running()
    bench.play(bench.group(0))
    again = GroupGraded(gid(0), 1, 2, False, 0, 0.5)
    assert bench.refusal(again).reason is RefusalReason.DUPLICATE


def test_a_trainer_that_is_behind_is_refused() -> None:
    bench = Bench.running()
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    bench.commit(1)
    behind = TrainerReady(plan().attempt_id, trainer_id(), 1, policy(0))
    assert bench.refusal(behind).reason is RefusalReason.STEP


def test_a_repeated_submission_does_not_start_an_ended_attempt_again() -> None:
    bench = Bench.running()
    bench.desire(Desired.CANCEL)
    again = JobSubmitted(plan(), 1)
    assert bench.refusal(again).reason is RefusalReason.DUPLICATE


def test_only_the_latest_ended_attempts_are_remembered() -> None:
    bench = Bench.running()
    ended = bench.core.state.ended
    ended.update({AttemptId(f"att_{number}"): None for number in range(2 * ENDED_MAX)})
    bench.desire(Desired.CANCEL)
    assert len(ended) == ENDED_MAX
    assert plan().attempt_id in ended


def test_a_sandbox_that_nobody_asked_for_is_a_duplicate() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    rollout = bench.rollout(0)
    again = SandboxReady(rollout.rollout_id, 1, node_host_id(0), 1)
    assert bench.refusal(again).reason is RefusalReason.DUPLICATE
