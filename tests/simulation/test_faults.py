"""Whole jobs on modelled hosts that die, hang up, fail; and leaders that are replaced."""

from collections.abc import Callable

import pytest

from domain.commands import CloseStep, GrantGang
from domain.ids import (
    EVALUATION_ORDINAL_BASE,
    HostId,
    RolloutId,
    group_of,
    host_id,
    node_host_id,
    ordinal_of,
)
from domain.plan import AfterTries, EvaluationPlan, JobPlan
from domain.states import Desired, End, JobState
from tests.simulation.driver import Workload, World
from tests.simulation.plans import POOL, plan, pool
from tests.simulation.rows import JobRow

JOB = plan(max_steps=4, evaluation=EvaluationPlan(4, 2, None))


def hosts_of(job: JobPlan) -> dict[str, HostId]:
    return {
        "trainer": host_id(job.attempt_id, "trainer"),
        "engine": host_id(job.attempt_id, "engine0"),
        "node": node_host_id(0),
    }


def succeed(world: World, job: JobRow, within_s: float = 2000.0) -> None:
    """Run to the end and check what every run must have reached."""
    world.run(lambda: job.state is JobState.SUCCEEDED, within_s)
    attempt = job.plan.attempt_id
    assert sorted(job.steps) == list(range(job.base_step + 1, job.plan.max_steps + 1))
    assert job.checkpoint_step == job.plan.max_steps
    taken = [group for members in job.steps.values() for group in members]
    assert len(taken) == len(set(taken)), "a group is in two steps"
    for row in world.rows.groups_of(attempt):
        assert row.disposition != "pending", row.opened.group_id
        assert all(rollout.end is not None for rollout in row.rollouts), row.opened.group_id
        assert row.staleness is None or row.staleness <= job.plan.max_staleness
    leases = world.rows.leases.values()
    assert not any(lease.is_up for lease in leases if lease.attempt_id == attempt)


@pytest.mark.parametrize("at_s", [0.5, 3.0, 6.2, 9.1])
@pytest.mark.parametrize("kind", ["trainer", "engine", "node"])
def test_a_host_may_die_at_any_time(kind: str, at_s: float) -> None:
    world = World(POOL)
    job = world.submit(JOB)
    world.run_for(at_s)
    world.kill(hosts_of(JOB)[kind])
    succeed(world, job)
    if JOB.evaluation is not None:
        assert job.evaluated == [0, 4]


@pytest.mark.parametrize("at_s", [0.3, 1.6, 3.0, 6.2, 9.1, 11.0])
def test_a_leader_may_die_at_any_time(at_s: float) -> None:
    world = World(POOL)
    job = world.submit(JOB)
    world.run_for(at_s)
    world.restart_leader(down_s=1.7)
    succeed(world, job)
    assert job.evaluated == [0, 4]


@pytest.mark.parametrize("evaluation_s", [0.2, 3.0, 9.0])
@pytest.mark.parametrize("kind", ["none", "trainer", "engine", "node"])
def test_no_evaluation_that_is_due_is_forgotten_by_a_new_leader(
    kind: str, evaluation_s: float
) -> None:
    """Evaluations that last longer than steps queue up behind one another."""
    every = plan(max_steps=5, max_staleness=2, evaluation=EvaluationPlan(6, 2, 1))

    def turn_s(rollout: RolloutId, turn: int) -> float:
        is_evaluation = ordinal_of(group_of(rollout)) >= EVALUATION_ORDINAL_BASE
        return evaluation_s if is_evaluation else 0.5

    for at_s in range(4, 60, 5):
        world = World(POOL, Workload(turn_s=turn_s))
        job = world.submit(every)
        world.run_for(float(at_s))
        world.restart_leader(down_s=1.7)
        if kind != "none":
            world.kill(hosts_of(every)[kind])
        succeed(world, job)
        assert job.evaluated == [0, 1, 2, 3, 4, 5], at_s
        cut = [body for type, body in job.notes if type == "job.evaluation_cut_short"]
        assert not cut, at_s


@pytest.mark.parametrize("kind", ["trainer", "engine", "node"])
def test_a_host_that_dies_while_nobody_leads_is_made_good(kind: str) -> None:
    world = World(POOL)
    job = world.submit(JOB)
    world.run_for(6.0)
    world.restart_leader(down_s=6.0)
    world.kill(hosts_of(JOB)[kind])
    succeed(world, job)


@pytest.mark.parametrize("kind", ["trainer", "engine", "node"])
def test_broken_links_lose_messages_and_nothing_else(kind: str) -> None:
    world = World(POOL)
    job = world.submit(JOB)
    for _ in range(12):
        world.run_for(0.9)
        world.disconnect(hosts_of(JOB)[kind])
    succeed(world, job)


def test_pause_and_resume_reach_the_planned_steps_of_the_same_attempt() -> None:
    world = World(POOL, Workload(turn_s=lambda rollout, turn: 9.0))
    job = world.submit(JOB)
    world.run_for(26.0)
    world.desire(job, Desired.PAUSE)
    world.run(lambda: job.state is JobState.PAUSED, 60)
    assert all(not lease.is_up for lease in world.rows.leases.values() if lease.attempt_id)
    paused = [
        entry
        for row in world.rows.groups.values()
        for rollout in row.rollouts
        for entry in rollout.tries
        if entry[1] is End.CANCELLED
    ]
    assert paused
    assert not any(counts for _, _, counts in paused)
    world.run_for(30.0)
    world.desire(job, Desired.RUN)
    succeed(world, job)
    assert len(world.commands(GrantGang)) == 2


def test_a_leader_that_dies_while_pausing_leaves_a_paused_job() -> None:
    world = World(POOL, Workload(turn_s=lambda rollout, turn: 3.0))
    job = world.submit(JOB)
    world.run_for(9.0)
    world.desire(job, Desired.PAUSE)
    world.run_for(0.2)
    world.restart_leader()
    world.run(lambda: job.state is JobState.PAUSED, 200)
    world.desire(job, Desired.RUN)
    succeed(world, job)


@pytest.mark.parametrize("at_s", [0.5, 3.0, 7.3, 10.0])
def test_cancel_ends_everything_and_leaves_no_host(at_s: float) -> None:
    world = World(POOL)
    job = world.submit(JOB)
    world.run_for(at_s)
    world.desire(job, Desired.CANCEL)
    world.run(lambda: job.state is JobState.CANCELLED, 200)
    assert all(not lease.is_up for lease in world.rows.leases.values() if lease.attempt_id)
    for row in world.rows.groups_of(JOB.attempt_id):
        assert row.disposition != "pending"
        assert all(rollout.end is not None for rollout in row.rollouts)
    assert job.checkpoint_step == (job.committed or None)


def test_poison_work_ends_after_its_tries_and_its_siblings_are_trained() -> None:
    def poison(rollout: str, try_: int, turn: int) -> End | None:
        return End.ENV_FAILED if rollout.endswith("_000") else None

    world = World(POOL, Workload(failure=poison))
    job = world.submit(plan(group_size=3, min_group_size=2, max_steps=3))
    succeed(world, job)
    for row in world.rows.groups_of(job.plan.attempt_id):
        first, *others = row.rollouts
        assert first.end is End.ENV_FAILED
        assert len(first.tries) == job.plan.tries
        assert all(rollout.end is End.DONE for rollout in others)


def test_a_job_whose_rollouts_all_fail_pauses_instead_of_looping() -> None:
    world = World(POOL, Workload(failure=lambda rollout, try_, turn: End.SANDBOX_LOST))
    job = world.submit(plan(after_tries=AfterTries.DROP, pause_if_failed_share=0.5))
    world.run(lambda: job.state is JobState.PAUSED, 2000)
    assert (job.reason or "").startswith("failed_share")
    assert [kind for kind, _ in job.notes] == ["job.failed_share"]


def small_limits(world: World) -> None:
    assert world.pool.sandboxes == 3


def two_engines_one_slot(world: World) -> None:
    assert world.slots == 1


@pytest.mark.parametrize(
    ("arrange", "sandboxes", "slots"), [(small_limits, 3, 2), (two_engines_one_slot, 64, 1)]
)
def test_small_limits_slow_a_job_down_and_do_not_stop_it(
    arrange: Callable[[World], None], sandboxes: int, slots: int
) -> None:
    world = World(pool(sandboxes=sandboxes), slots=slots)
    arrange(world)
    job = world.submit(JOB)
    world.run_for(5.0)
    world.kill(hosts_of(JOB)["node"])
    succeed(world, job)


def test_two_jobs_share_the_pool_and_both_succeed() -> None:
    world = World(pool(trainers=2, sandboxes=9))
    jobs = [world.submit(plan(name, engines_max=1)) for name in ("a", "b")]
    for job in jobs:
        succeed(world, job)


def test_a_queued_job_starts_when_the_first_has_ended() -> None:
    world = World(POOL)
    first, second = world.submit(plan("a")), world.submit(plan("b"))
    assert (second.state, second.queue_position) == (JobState.QUEUED, 1)
    succeed(world, first)
    succeed(world, second)


def test_a_restarted_attempt_goes_on_from_its_checkpoint() -> None:
    world = World(POOL)
    job = world.submit(plan(max_steps=5), base_step=3, ordinals=(4, 6))
    succeed(world, job)
    issued = [row.opened.ordinal for row in world.rows.groups_of(job.plan.attempt_id)]
    assert sorted(issued) == [4, 6, 7, 8]


def test_diverged_steps_count_and_their_groups_are_dropped() -> None:
    world = World(POOL, Workload(diverges=lambda step: step == 2))
    job = world.submit(plan(max_steps=4))
    succeed(world, job)
    diverged = [world.rows.groups[group].disposition for group in job.steps[2]]
    assert diverged == ["dropped(diverged)"] * 2


def test_failing_syncs_replace_the_engine_and_the_job_goes_on() -> None:
    world = World(POOL, Workload(sync_fails=lambda host, version: version == 2))
    job = world.submit(plan(max_steps=4))
    world.run(lambda: job.committed == 2, 200)
    world.run_for(5.0)
    world.workload.sync_fails = lambda host, version: False
    succeed(world, job)


def test_a_step_is_closed_again_for_a_trainer_that_died_in_it() -> None:
    world = World(POOL, Workload(step_s=5.0))
    job = world.submit(plan(max_steps=2))
    world.run(lambda: bool(world.commands(CloseStep)), 200)
    world.run_for(1.0)
    world.kill(hosts_of(JOB)["trainer"])
    succeed(world, job)
    assert len(world.commands(CloseStep)) > 2


def test_a_job_that_nothing_pauses_and_of_which_all_fails_costs_few_sandboxes() -> None:
    """Nobody is helped by more tries than tell when what is broken works again."""
    world = World(POOL, Workload(failure=lambda rollout, try_, turn: End.SANDBOX_LOST))
    job = world.submit(plan(pause_if_failed_share=1.0, max_staleness=3, async_ratio=4.0))
    world.run(lambda: world.now > 200.0, 20_000)
    assert job.state is JobState.RUNNING
    assert 10 <= len(world.rows.groups_of(job.plan.attempt_id)) <= 60
