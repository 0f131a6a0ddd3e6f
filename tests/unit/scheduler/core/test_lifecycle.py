"""Submit, run, pause, resume, cancel, finish, fail."""

import pytest

from domain.commands import (
    AssignGroup,
    CloseRollout,
    CloseStep,
    DropGroup,
    EndTry,
    ForkSandboxes,
    GradeGroup,
    GrantGang,
    ReleaseGang,
    SetJobState,
    WriteCheckpoint,
)
from domain.events import HostLost, TrainerFailed
from domain.plan import JobPlan
from domain.states import Desired, DropReason, JobState
from scheduler.core import lifecycle
from scheduler.core.records import GroupPhase
from scheduler.core.refusals import RefusalReason
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench, engine_id, trainer_id

JOB = plan(max_steps=2, checkpoint_every=1)


def states(bench: Bench) -> list[JobState]:
    return [c.state for c in bench.found(SetJobState, bench.commands)]


def trained(job: JobPlan = JOB, steps: int = 1) -> Bench:
    """A running job with this many committed and checkpointed steps."""
    bench = Bench.running(job)
    for step in range(1, steps + 1):
        train(bench, step)
        bench.checkpoint(step)
    return bench


def train(bench: Bench, step: int) -> None:
    job = bench.job().plan
    while len(bench.job().positions) < job.groups_per_batch:
        group = next(g for g in bench.job().training_groups() if g.is_unfinished)
        bench.play(group, group.policy_version)
    bench.commit(step)
    bench.synced(job, 0, step)


def test_a_job_runs_once_trainer_engine_and_node_are_there() -> None:
    bench = Bench()
    bench.submit(JOB)
    bench.trainer(JOB)
    bench.engine(JOB)
    bench.synced(JOB, 0, 0)
    assert bench.job().state is JobState.PROVISIONING
    bench.node()
    assert bench.job().state is JobState.RUNNING


def test_a_checkpoint_is_asked_every_n_steps_and_at_the_end() -> None:
    bench = Bench.running(plan(max_steps=5, checkpoint_every=2))
    for step in range(1, 6):
        train(bench, step)
        if step in (2, 4):
            bench.checkpoint(step)
    asked = bench.found(WriteCheckpoint, bench.commands)
    assert [(c.step, c.reason) for c in asked] == [(2, "periodic"), (4, "periodic"), (5, "final")]


def test_a_job_succeeds_only_with_its_final_checkpoint_and_synced_engines() -> None:
    bench = trained(steps=1)
    for _ in range(2):
        group = next(g for g in bench.job().training_groups() if g.is_unfinished)
        bench.play(group, group.policy_version)
    bench.commit(2)
    bench.checkpoint(2)
    assert bench.job().state is JobState.RUNNING, "the engine does not serve the final version"
    commands = bench.synced(JOB, 0, 2)
    assert [c.state for c in bench.found(SetJobState, commands)] == [JobState.SUCCEEDED]
    assert len(bench.found(ReleaseGang, commands)) == 1
    assert bench.core.view(JOB.job_id) is None


def test_a_pause_waits_for_open_work_then_checkpoints_and_releases() -> None:
    bench = Bench.running(plan(max_steps=9, drain_s=30.0))
    train(bench, 1)
    bench.desire(Desired.PAUSE)
    assert bench.job().state is JobState.PAUSING
    before = len(bench.opened())
    while any(g.is_unfinished for g in bench.job().groups.values()):
        bench.play_open(1)
    assert len(bench.opened()) == before
    assert not [a for a in bench.found(AssignGroup, bench.commands) if a.step == 2]
    assert len(bench.found(CloseStep, bench.commands)) == 1, "a full step waits for the resume"
    asked = bench.found(WriteCheckpoint, bench.commands)
    assert [(c.step, c.reason) for c in asked] == [(1, "pause")]
    commands = bench.checkpoint(1)
    assert bench.found(ReleaseGang, commands)
    assert bench.job().state is JobState.PAUSED


def test_after_the_drain_time_open_tries_end_as_paused() -> None:
    bench = Bench.running(plan(max_steps=9, drain_s=5.0))
    bench.ready(bench.rollout(0))
    bench.desire(Desired.PAUSE)
    assert bench.found(EndTry, bench.tick(4.0)) == []
    ended = bench.found(EndTry, bench.tick(2.0))
    assert len(ended) == 8
    assert {(e.cause, e.counts, e.next_try) for e in ended} == {("paused", False, 2)}
    assert bench.job().state is JobState.PAUSED, "no step was committed, so nothing to checkpoint"


def resumed(bench: Bench) -> None:
    """Bring the hosts of a resuming job up under their next epochs."""
    job, version = bench.job().plan, bench.job().committed
    bench.trainer(job, epoch=2, version=version)
    bench.engine(job, 0, epoch=2)
    bench.synced(job, 0, version, epoch=2)


def test_a_resumed_job_starts_the_next_tries_of_the_same_attempt() -> None:
    bench = Bench.running(plan(max_steps=9, drain_s=0.0))
    bench.play(bench.group(0))
    bench.ready(bench.rollout(1))
    bench.desire(Desired.PAUSE)
    assert bench.job().state is JobState.PAUSED
    commands = bench.desire(Desired.RUN, generation=3)
    assert len(bench.found(GrantGang, commands)) == 1
    resumed(bench)
    assert bench.job().state is JobState.RUNNING
    tries = [member[1] for fork in bench.found(ForkSandboxes) for member in fork.members]
    assert tries[:6] == [2] * 6
    assert bench.group(0).phase is GroupPhase.ASSIGNED


def test_a_late_loss_of_a_released_host_is_no_failed_start_of_the_next() -> None:
    bench = Bench.running(plan(max_steps=9, drain_s=0.0))
    bench.desire(Desired.PAUSE)
    bench.desire(Desired.RUN, generation=3)
    late = HostLost(engine_id(), 1, "the lease was freed")
    assert bench.refusal(late).reason is RefusalReason.EPOCH


def test_a_grading_that_the_pause_cut_off_is_asked_again_on_resume() -> None:
    bench = Bench.running(plan(max_steps=9, drain_s=0.0))
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
        bench.close(rollout)
    bench.desire(Desired.PAUSE)
    bench.desire(Desired.RUN, generation=3)
    resumed(bench)
    assert [g.grade_epoch for g in bench.graded()] == [1, 2]


def test_a_wish_to_run_during_a_pause_resumes_right_after_it() -> None:
    bench = Bench.running(plan(max_steps=9, drain_s=30.0))
    bench.desire(Desired.PAUSE)
    bench.desire(Desired.RUN, generation=3)
    assert bench.job().state is JobState.PAUSING
    bench.tick(31.0)
    assert states(bench)[-2:] == [JobState.PAUSED, JobState.RESUMING]


def test_a_queued_job_pauses_and_cancels_at_once() -> None:
    bench = Bench.running()
    bench.submit(plan("b"))
    bench.desire(Desired.PAUSE, name="b")
    assert bench.job("b").state is JobState.PAUSED
    bench.desire(Desired.CANCEL, generation=3, name="b")
    assert states(bench)[-1] is JobState.CANCELLED


def test_a_pause_while_provisioning_releases_the_gang() -> None:
    bench = Bench()
    bench.submit(JOB)
    commands = bench.desire(Desired.PAUSE)
    assert bench.job().state is JobState.PAUSED
    assert len(bench.found(ReleaseGang, commands)) == 1


def test_cancel_closes_drops_checkpoints_and_releases() -> None:
    bench = Bench.running(plan(max_steps=9))
    train(bench, 1)
    bench.play(next(g for g in bench.job().training_groups() if g.is_unfinished), 1)
    live = list(bench.job().groups)
    commands = bench.desire(Desired.CANCEL)
    assert [d.group_id for d in bench.found(DropGroup, commands)] == live
    assert {d.reason for d in bench.found(DropGroup, commands)} == {DropReason.CANCELLED}
    assert {c.cause for c in bench.found(CloseRollout, commands)} == {"group dropped: cancelled"}
    assert [c.reason for c in bench.found(WriteCheckpoint, commands)] == ["cancel"]
    position = bench.core.data_position(JOB.attempt_id)
    assert len(position[1]) == len(live)
    commands = bench.checkpoint(1)
    assert [c.state for c in bench.found(SetJobState, commands)] == [JobState.CANCELLED]
    assert len(bench.found(ReleaseGang, commands)) == 1


def test_cancel_lets_a_closing_step_end_before_its_groups_are_dropped() -> None:
    bench = Bench.running(plan(max_steps=9))
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    commands = bench.desire(Desired.CANCEL)
    assert len(bench.found(DropGroup, commands)) == 2
    bench.commit(1)
    bench.checkpoint(1)
    assert states(bench)[-1] is JobState.CANCELLED


@pytest.mark.parametrize("desired", [Desired.PAUSE, Desired.CANCEL])
def test_a_dead_trainer_holds_up_neither_pause_nor_cancel_for_ever(desired: Desired) -> None:
    bench = Bench.running(plan(max_steps=9, drain_s=0.0))
    train(bench, 1)
    bench.lost(trainer_id())
    bench.desire(desired)
    bench.tick(lifecycle.CHECKPOINT_WAIT_S - 1)
    assert bench.job().state in (JobState.PAUSING, JobState.CANCELLING)
    bench.tick(2.0)
    assert states(bench)[-1] in (JobState.PAUSED, JobState.CANCELLED)


def test_a_recovered_trainer_gets_its_open_requests_again() -> None:
    bench = trained(plan(max_steps=9, checkpoint_every=9))
    for _ in range(2):
        group = next(g for g in bench.job().training_groups() if g.is_unfinished)
        bench.play(group, group.policy_version)
    bench.lost(trainer_id())
    commands = bench.trainer(JOB, epoch=2, version=1)
    assert bench.found(CloseStep, commands) == [CloseStep(JOB.attempt_id, 2)]


def test_a_recovered_trainer_is_asked_for_the_missing_checkpoint_again() -> None:
    bench = Bench.running(JOB)
    train(bench, 1)
    bench.lost(trainer_id())
    commands = bench.trainer(JOB, epoch=2, version=1)
    assert [c.step for c in bench.found(WriteCheckpoint, commands)] == [1]


def test_a_trainer_that_is_ahead_tells_the_step_that_was_not_heard() -> None:
    bench = Bench.running(JOB)
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    bench.lost(trainer_id())
    bench.trainer(JOB, epoch=2, version=1)
    assert bench.job().committed == 1
    policy = bench.job().policy
    assert policy is not None
    assert policy.version == 1


def test_a_failing_trainer_fails_the_job_with_its_code() -> None:
    bench = Bench.running(JOB)
    commands = bench.feed(TrainerFailed(JOB.attempt_id, "diverged", "loss is NaN"))
    failed = bench.found(SetJobState, commands)[0]
    assert (failed.state, failed.failure_code, failed.failure_component) == (
        JobState.FAILED,
        "diverged",
        "trainer",
    )
    assert len(bench.found(DropGroup, commands)) == 4
    assert len(bench.found(ReleaseGang, commands)) == 1


@pytest.mark.parametrize("kind", ["engine", "trainer"])
def test_a_host_that_dies_at_every_start_fails_the_job(kind: str) -> None:
    bench = Bench()
    bench.node()
    bench.submit(JOB)
    host = engine_id() if kind == "engine" else trainer_id()
    for epoch in range(1, lifecycle.HOST_LOSSES_MAX + 2):
        commands = bench.lost(host, epoch)
    failed = bench.found(SetJobState, commands)[0]
    assert (failed.failure_code, failed.failure_component) == ("host_lost", kind)
    assert failed.retryable


def test_the_users_generation_is_answered_even_when_nothing_changes() -> None:
    bench = Bench.running(JOB)
    commands = bench.desire(Desired.RUN, generation=7)
    shown = bench.found(SetJobState, commands)
    assert [(s.state, s.observed_generation) for s in shown] == [(JobState.RUNNING, 7)]


def test_a_finished_job_leaves_room_for_the_next() -> None:
    bench = Bench.running(JOB)
    bench.submit(plan("b"))
    commands = bench.desire(Desired.CANCEL)
    assert [c.job_id for c in bench.found(GrantGang, commands)] == [plan("b").job_id]
    assert bench.found(GradeGroup, commands) == []
