"""Random worlds: plans, pools, workloads and faults drawn from one injected source of chance."""

from dataclasses import replace
from random import Random

from domain.events import JobSubmitted, StateRestored
from domain.ids import GroupId, HostId, OrganizationId, RolloutId
from domain.plan import (
    AfterTries,
    EvaluationPlan,
    JobLimits,
    JobPlan,
    Order,
    Priority,
    Scheduling,
    StrategyName,
    TenantShare,
)
from domain.states import TERMINAL, Desired, End, JobState
from scheduler.core.strategies import rules_for
from tests.simulation.driver import Workload, World
from tests.simulation.plans import plan, pool
from tests.simulation.rows import JobRow

ORGANIZATION, OTHER = OrganizationId("org_1"), OrganizationId("org_2")

FAULTS = ("engine", "trainer", "node", "link", "leader", "pause", "run", "late", "limits")


def random_workload(chance: Random) -> Workload:
    """Turns of mixed length, and a little of every failure that happens inside hosts."""
    failed = chance.choice([0.0, 0.0, 0.02, 0.1])
    drawn: dict[RolloutId, int] = {}

    def turns(rollout: RolloutId) -> int:
        return drawn.setdefault(rollout, chance.choice([1, 1, 2, 3, 5]))

    def failure(rollout: RolloutId, try_: int, turn: int) -> End | None:
        return End.ENV_FAILED if chance.random() < failed else None

    def is_flat(group: GroupId) -> bool:
        return chance.random() < 0.1

    def sync_fails(host: HostId, version: int) -> bool:
        return chance.random() < 0.1

    return Workload(
        turn_s=lambda rollout, turn: chance.choice([0.2, 1.0, 3.0]),
        turns=turns,
        failure=failure,
        is_flat=is_flat,
        grade_fails=lambda group, epoch: chance.random() < 0.05,
        sync_fails=sync_fails,
        diverges=lambda step: chance.random() < 0.05,
        score=lambda step: None if step == 1 else step / 4,
    )


def random_plan(chance: Random, name: str) -> JobPlan:
    """A small plan with every switch drawn."""
    evaluated = EvaluationPlan(5, chance.choice([1, 2]), chance.choice([None, 1, 2]))
    return plan(
        name,
        group_size=chance.choice([1, 2, 3]),
        groups_per_batch=chance.choice([1, 2, 3]),
        max_staleness=chance.choice([0, 1, 2]),
        async_ratio=chance.choice([1.0, 1.5, 3.0]),
        order=chance.choice(list(Order)),
        max_steps=chance.choice([3, 5]),
        after_tries=chance.choice(list(AfterTries)),
        evaluation=chance.choice([None, evaluated]),
        target_eval=chance.choice([None, None, 0.0, 0.6]),
    )


def random_world(
    seed: int, strategy: StrategyName | None = None
) -> tuple[World, list[JobRow], Random]:
    """A world with one or two jobs, of one organization or of two; of two, one may have a guarantee.

    With a strategy named, engines have small devices, so that its rules suspend and move rollouts.
    """
    chance, of_tenants = Random(seed), Random(f"tenants {seed}")
    other = of_tenants.choice([ORGANIZATION, OTHER])
    promised = TenantShare(OTHER, 2.0, engines=1, trainers=1, sandboxes=3)
    capacity = pool(
        engines=chance.choice([1, 2]),
        trainers=chance.choice([1, 2]),
        sandboxes=chance.choice([4, 6, 20]),
        tenants=of_tenants.choice([(), (promised,)]),
    )
    world = World(
        capacity,
        random_workload(chance),
        nodes=chance.choice([1, 2]),
        slots=chance.choice([1, 3, 8]),
    )
    names = chance.choice([("a",), ("a",), ("a", "b")])
    plans = [random_plan(chance, name) for name in names]
    if strategy is not None:
        plans = [replace(one, scheduling=Scheduling(strategy)) for one in plans]
        world.kv_tokens = of_tenants.choice([0, 250, 600])
    jobs = [world.submit(plans[0])]
    jobs += [world.submit(replace(plan, organization_id=other)) for plan in plans[1:]]
    return world, jobs, chance


def inflict(world: World, jobs: list[JobRow], fault: str, chance: Random) -> None:
    """One fault or wish."""
    hosts = sorted(world.machines)
    match fault:
        case "engine" | "trainer" | "node":
            named = [host for host in hosts if fault in host]
            if named:
                world.kill(chance.choice(named))
        case "link" if hosts:
            world.disconnect(chance.choice(hosts))
        case "leader" if world.leader is not None:
            world.restart_leader(chance.choice([0.1, 1.0, 5.0]))
        case "pause" | "run" | "cancel":
            job = chance.choice(jobs)
            wish = Desired(fault)
            if job.state not in TERMINAL and job.desired is not Desired.CANCEL:
                world.desire(job, wish)
        case "limits":
            job = chance.choice(jobs)
            if job.state not in TERMINAL:
                world.limit(job, JobLimits(chance.randint(1, 6), chance.choice(list(Priority))))
        case "late" if world.events:
            for _ in range(3):
                _, event = chance.choice(world.events)
                if not isinstance(event, StateRestored | JobSubmitted):
                    world.deliver(event)
        case _:
            pass


def run_out(world: World, jobs: list[JobRow], chance: Random, faults: int = 6) -> None:
    """Inflict random faults, then let the jobs run to their ends."""
    for _ in range(faults):
        world.run_for(chance.expovariate(1 / 3.0))
        inflict(world, jobs, chance.choice(FAULTS), chance)
    finish(world, jobs)


def finish(world: World, jobs: list[JobRow]) -> None:
    """No more faults: every job must end, and exactly as planned."""
    for job in jobs:
        if job.state not in TERMINAL and job.desired is Desired.PAUSE:
            world.desire(job, Desired.RUN)
    for _ in range(300):
        if all(job.state in TERMINAL for job in jobs):
            break
        world.run_for(10.0)
        for job in jobs:
            if job.state is JobState.PAUSED:
                world.desire(job, Desired.RUN)
    for job in jobs:
        check_end(world, job)


def check_end(world: World, job: JobRow) -> None:
    """What every ended job must have reached, whatever happened on the way."""
    assert job.state in TERMINAL, world.picture()
    assert job.state is not JobState.FAILED or job.failure_code == "host_lost", job.failure_code
    if job.state is JobState.SUCCEEDED:
        last = job.committed
        assert sorted(job.steps) == list(range(1, last + 1))
        assert job.checkpoint_step == (last or None)
        if job.reason == "target_reached":
            target = job.plan.target_eval
            assert target is not None
            assert max(score for score in job.scores.values() if score is not None) >= target
        else:
            assert last >= job.plan.max_steps
    taken = [group for members in job.steps.values() for group in members]
    assert len(taken) == len(set(taken)), "a group is in two batches"
    paces = rules_for(job.plan.scheduling).paces
    for row in world.rows.groups_of(job.plan.attempt_id):
        assert row.disposition != "pending", row.opened.group_id
        assert row.staleness is None or row.staleness <= job.plan.max_staleness
        is_stale = row.disposition == "dropped(stale)"
        assert not (is_stale and paces), "pacing let a group become too old"
        for rollout in row.rollouts:
            assert rollout.end is not None, rollout.rollout_id
            counted = sum(counts for _, _, counts in rollout.tries)
            assert counted <= job.plan.tries, rollout.rollout_id
    assert not any(lease.is_up for lease in world.rows.leases.values() if lease.attempt_id)
