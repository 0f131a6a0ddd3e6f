"""Limits that the user changes while a job runs: the last step, and the class in the queue."""

from dataclasses import replace

from domain.commands import (
    AssignGroup,
    DropGroup,
    GrantGang,
    ReplaceMember,
    SetJobState,
    WriteCheckpoint,
)
from domain.events import BudgetSpent, DesiredChanged, RestoredJob, StateRestored, StepCommitted
from domain.plan import JobLimits, JobPlan, Priority
from domain.states import Desired, DropReason, JobState
from scheduler.core.refusals import RefusalReason
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench, policy
from tests.unit.scheduler.core.test_lifecycle import resumed, states, train

LONG = plan(max_steps=9, checkpoint_every=20)


def change(
    bench: Bench,
    max_steps: int,
    generation: int = 2,
    desired: Desired = Desired.RUN,
    priority: Priority = Priority.NORMAL,
) -> list[object]:
    """The user patches a job's limits."""
    limits = JobLimits(max_steps, priority)
    event = DesiredChanged(LONG.job_id, desired, generation, limits, is_wish=False)
    return [*bench.feed(event)]


def committed(steps: int, job: JobPlan = LONG) -> Bench:
    """A running job with this many committed steps."""
    bench = Bench.running(job)
    for step in range(1, steps + 1):
        train(bench, step)
    return bench


def test_a_lowered_limit_ends_the_job_at_that_step() -> None:
    bench = committed(1)
    change(bench, 2)
    train(bench, 2)
    asked = bench.found(WriteCheckpoint, bench.commands)
    assert [(c.step, c.reason) for c in asked] == [(2, "final")]
    bench.checkpoint(2)
    assert states(bench)[-1] is JobState.SUCCEEDED


def test_a_limit_below_what_is_committed_undoes_nothing_and_ends_the_job() -> None:
    bench = committed(3)
    change(bench, 1)
    assert bench.job().plan.max_steps == 3
    assert [c.step for c in bench.found(WriteCheckpoint, bench.commands)] == [3]
    bench.checkpoint(3)
    assert states(bench)[-1] is JobState.SUCCEEDED


def test_groups_of_steps_that_no_longer_come_are_dropped_at_once() -> None:
    bench = committed(2)
    waiting = len(bench.job().training_groups())
    change(bench, 2)
    dropped = bench.found(DropGroup)
    assert len(dropped) == waiting > 0
    assert {one.reason for one in dropped} == {DropReason.CANCELLED}
    assert bench.job().training_groups() == []


def test_a_step_that_is_full_is_still_made() -> None:
    bench = committed(1)
    while len(bench.job().positions) < LONG.groups_per_batch:
        group = next(g for g in bench.job().training_groups() if g.is_unfinished)
        bench.play(group, group.policy_version)
    change(bench, 1)
    assert bench.job().plan.max_steps == 2
    bench.commit(2)
    bench.synced(LONG, 0, 2)
    bench.checkpoint(2)
    assert states(bench)[-1] is JobState.SUCCEEDED


def test_groups_of_a_step_that_the_job_ends_before_leave_their_places() -> None:
    bench = committed(1)
    group = next(g for g in bench.job().training_groups() if g.is_unfinished)
    bench.play(group, group.policy_version)
    change(bench, 1)
    commands = bench.checkpoint(1)
    assert states(bench)[-1] is JobState.SUCCEEDED
    (freed,) = bench.found(ReplaceMember, commands)
    assert (freed.step, freed.group_id, freed.reason) == (2, group.group_id, DropReason.CANCELLED)


def test_a_budget_that_is_spent_pauses_the_job_and_a_resume_needs_more() -> None:
    bench = committed(1, replace(LONG, drain_s=0.0))
    spent = BudgetSpent(LONG.job_id, "budget: 1 of 1 hours")
    bench.feed(spent)
    bench.checkpoint(1)
    assert (bench.job().state, bench.job().reason) == (JobState.PAUSED, spent.reason)
    assert bench.refusal(spent).reason is RefusalReason.DUPLICATE
    bench.desire(Desired.RUN)
    assert bench.job().state is JobState.RESUMING
    bench.feed(spent)
    assert bench.job().state is JobState.PAUSED


def test_a_lowered_limit_raised_again_goes_on_with_the_places_that_were_filled() -> None:
    bench = committed(1)
    group = next(g for g in bench.job().training_groups() if g.is_unfinished)
    bench.play(group, group.policy_version)
    held = dict(bench.job().positions)
    assert len(held) == 1
    change(bench, 1)
    assert bench.job().positions == held
    change(bench, 5, generation=3)
    train(bench, 2)
    assert bench.job().committed == 2
    assigned = [c.position for c in bench.found(AssignGroup, bench.commands) if c.step == 2]
    assert sorted(assigned) == [0, 1]


def test_a_raised_limit_keeps_a_job_from_ending() -> None:
    short = plan(max_steps=2, checkpoint_every=20)
    bench = committed(2, short)
    assert bench.found(WriteCheckpoint, bench.commands)[-1].reason == "final"
    change(bench, 3)
    bench.checkpoint(2)
    assert bench.job().state is JobState.RUNNING
    train(bench, 3)
    bench.checkpoint(3)
    assert states(bench)[-1] is JobState.SUCCEEDED


def test_new_limits_do_not_resume_a_job_that_paused_itself() -> None:
    bench = committed(1, replace(LONG, drain_s=0.0))
    bench.job().pause_wanted = "no_signal"
    bench.tick()
    bench.checkpoint(1)
    assert bench.job().state is JobState.PAUSED
    change(bench, 5)
    assert (bench.job().state, bench.job().reason) == (JobState.PAUSED, "no_signal")
    said = bench.found(SetJobState)
    assert [(c.state, c.observed_generation) for c in said] == [(JobState.PAUSED, 2)]
    bench.desire(Desired.RUN, generation=3)
    resumed(bench)
    assert (bench.job().state, bench.job().plan.max_steps) == (JobState.RUNNING, 5)


def test_a_pause_and_new_limits_in_one_are_both_taken() -> None:
    bench = committed(1)
    change(bench, 4, desired=Desired.PAUSE)
    assert (bench.job().state, bench.job().plan.max_steps) == (JobState.PAUSING, 4)


def test_a_limit_lowered_while_no_leader_looked_is_held_at_the_committed_step() -> None:
    bench = Bench()
    restored = RestoredJob(
        plan=replace(LONG, max_steps=2),
        generation=2,
        observed_generation=1,
        wished_generation=1,
        desired=Desired.RUN,
        state=JobState.PAUSED,
        reason="no_signal",
        base_step=0,
        committed_step=4,
        policy=policy(4),
        next_ordinal=8,
        unconsumed=(),
        groups=(),
        checkpoint_step=4,
        evaluated_steps=(),
    )
    bench.feed(StateRestored((restored,)))
    assert bench.job().plan.max_steps == 4
    assert bench.job().pause_wanted == "no_signal", "new limits are no wish to run"


def test_a_step_committed_beyond_a_lowered_limit_is_the_last_one() -> None:
    bench = committed(1)
    change(bench, 1)
    bench.feed(StepCommitted(LONG.attempt_id, 2, policy(2), False))
    assert bench.job().committed == bench.job().plan.max_steps == 2


def test_a_higher_class_is_granted_first_and_may_be_reached_while_waiting() -> None:
    bench = Bench.running(plan("busy"))
    for name in ("b", "c", "d"):
        bench.submit(plan(name))
    limits = JobLimits(4, Priority.HIGH)
    bench.feed(DesiredChanged(plan("c").job_id, Desired.RUN, 2, limits, is_wish=False))
    bench.feed(DesiredChanged(plan("b").job_id, Desired.RUN, 2, JobLimits(4, Priority.LOW), False))
    order = {name: bench.job(name).queue_position for name in ("b", "c", "d")}
    assert order == {"c": 1, "d": 2, "b": 3}
    bench.desire(Desired.CANCEL, generation=2, name="busy")
    assert [c.job_id for c in bench.found(GrantGang)] == [plan("c").job_id]
