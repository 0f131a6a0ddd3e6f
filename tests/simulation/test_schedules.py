"""Whatever happens to a job, every one of its live rollouts has a reason to wait that is true."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from domain.events import Event
from domain.ids import HostId, RolloutId, host_id, node_host_id
from domain.plan import EvaluationPlan, OnNoSignal, Pool
from domain.schedule import Lane, NextGroup, RolloutStage, WaitReason
from domain.states import Desired, End, JobState
from scheduler.core import placement, waits
from scheduler.core.coordinator import Coordinator
from scheduler.core.records import JobRecord, SandboxState
from scheduler.core.state import Pass
from scheduler.core.views import ScheduleView, view_schedule
from tests.simulation.driver import Workload, World
from tests.simulation.plans import POOL, plan

JOB = plan(max_steps=4, evaluation=EvaluationPlan(4, 2, 1))

WITHOUT_SANDBOX = {
    WaitReason.WAITS_FOR_SANDBOX,
    WaitReason.RETRY_BACKOFF,
    WaitReason.WAITS_FOR_NODE,
    WaitReason.JOB_NOT_RUNNING,
}
AT_END = {
    WaitReason.WAITS_FOR_SIBLINGS,
    WaitReason.WAITS_FOR_GRADE,
    WaitReason.WAITS_FOR_BATCH,
    WaitReason.WAITS_FOR_EVALUATION,
    WaitReason.IN_BATCH,
    WaitReason.JOB_NOT_RUNNING,
}


@dataclass(slots=True)
class Watched(World):
    """A world that looks at every job's schedule after every event."""

    reasons: Counter[WaitReason] = field(default_factory=Counter)
    upcoming: Counter[NextGroup] = field(default_factory=Counter)
    lanes: Counter[Lane] = field(default_factory=Counter)

    def deliver(self, event: Event) -> None:
        World.deliver(self, event)
        if self.leader is not None:
            for job in list(self.leader.state.jobs.values()):
                self._look(self.leader, job)

    def _look(self, leader: Coordinator, job: JobRecord) -> None:
        view = view_schedule(leader.state, job.plan.job_id, self.now, 1000)
        assert view is not None
        check(job, view)
        self.upcoming[view.next_group] += 1
        for group in view.groups:
            self.lanes[group.lane] += 1
            self.reasons.update(member.wait_reason for member in group.members)


def check(job: JobRecord, view: ScheduleView) -> None:
    """The view has every group and rollout once, with a reason that fits its record."""
    assert {group.group_id for group in view.groups} == set(job.groups)
    assert sum(count for _, count in view.lanes) == len(job.groups)
    order = [list(Lane).index(group.lane) for group in view.groups]
    assert order == sorted(order)
    for group in view.groups:
        record = job.groups[group.group_id]
        assert [one.rollout_id for one in group.members] == [r.rollout_id for r in record.rollouts]
        for member, rollout in zip(group.members, record.rollouts, strict=True):
            assert (member.stage is RolloutStage.ENDED) == (not rollout.is_open)
            if not rollout.is_open:
                assert member.wait_reason in AT_END
            elif rollout.is_closing:
                assert member.wait_reason is WaitReason.CANCELLING
            elif rollout.host is not None:
                assert member.wait_reason is WaitReason.RUNNING
            elif rollout.sandbox is SandboxState.WANTED and not job.unsettled:
                assert member.wait_reason in WITHOUT_SANDBOX
            if member.wait_reason is WaitReason.WAITS_FOR_BATCH:
                assert record.is_training, "evaluations enter no batch"
            if member.wait_reason is WaitReason.RETRY_BACKOFF:
                assert dict(member.numbers)["failed"] >= 1


def done(world: World, state: JobState = JobState.SUCCEEDED) -> None:
    (job,) = world.rows.jobs.values()
    world.run(lambda: job.state is state, 5000.0)


def failing(rollout: RolloutId, try_: int, turn: int) -> End | None:
    return End.SANDBOX_LOST if try_ == 1 and rollout.endswith("_000") else None


def test_a_quiet_job_names_each_stage_of_a_rollout() -> None:
    world = Watched(POOL)
    world.submit(JOB)
    done(world)
    assert set(Lane) - {Lane.NORMAL, Lane.PROMOTED} <= set(world.lanes)
    for reason in (
        WaitReason.SANDBOX_STARTS,
        WaitReason.RUNNING,
        WaitReason.WAITS_FOR_SIBLINGS,
        WaitReason.WAITS_FOR_GRADE,
        WaitReason.WAITS_FOR_BATCH,
        WaitReason.WAITS_FOR_EVALUATION,
        WaitReason.IN_BATCH,
    ):
        assert world.reasons[reason], reason
    assert world.upcoming[NextGroup.LAST_STEP]
    assert world.upcoming[NextGroup.JOB_NOT_RUNNING]
    assert world.upcoming[NextGroup.ACTIVE_BATCH]


@pytest.mark.parametrize("kind", ["engine0", "node", "trainer"])
def test_a_job_whose_host_dies_says_what_is_missing(kind: str) -> None:
    world = Watched(POOL, Workload(failure=failing))
    world.submit(plan(max_steps=4, engines_max=1))
    world.run_for(4.0)
    hosts: dict[str, HostId] = {"node": node_host_id(0)}
    world.kill(hosts.get(kind, host_id(JOB.attempt_id, kind)))
    done(world)
    assert world.reasons[WaitReason.RETRY_BACKOFF]
    missing = {"engine0": WaitReason.WAITS_FOR_ENGINE, "node": WaitReason.WAITS_FOR_NODE}
    assert kind not in missing or world.reasons[missing[kind]]
    assert kind != "engine0" or world.upcoming[NextGroup.WAITS_FOR_ENGINE]


def test_rollouts_of_a_former_leader_wait_for_its_hosts() -> None:
    world = Watched(POOL)
    world.submit(JOB)
    world.run(lambda: bool(world.reasons[WaitReason.RUNNING]))
    world.restart_leader()
    done(world)
    assert world.reasons[WaitReason.WAITS_FOR_HOST]


def test_a_pool_without_sandboxes_says_how_many_are_free() -> None:
    world = Watched(Pool(engines=2, trainers=1, sandboxes=3, grading_reserve=1))
    job = world.submit(plan(max_steps=2))
    world.run(lambda: bool(world.upcoming[NextGroup.SANDBOXES]), 1000.0)
    assert world.leader is not None
    view = view_schedule(world.leader.state, job.plan.job_id, world.now, 1000)
    assert view is not None
    done(world)


def test_a_paused_job_does_not_run() -> None:
    world = Watched(POOL, Workload(turn_s=lambda rollout, turn: 30.0))
    job = world.submit(plan(max_steps=3))
    world.run(lambda: bool(world.reasons[WaitReason.RUNNING]))
    world.desire(job, Desired.PAUSE)
    done(world, JobState.PAUSED)
    world.run_for(5.0)
    assert world.reasons[WaitReason.JOB_NOT_RUNNING]


def test_groups_without_variance_hold_the_next_one_back() -> None:
    world = Watched(POOL, Workload(is_flat=lambda group: True))
    world.submit(plan(on_no_signal=OnNoSignal.WAIT))
    world.run_for(60.0)
    assert world.upcoming[NextGroup.WAITS_FOR_SIGNAL]


def test_only_the_first_groups_are_listed_and_all_are_counted() -> None:
    world = World(POOL)
    job = world.submit(plan(max_steps=4))
    world.run(lambda: job.committed >= 1)
    assert world.leader is not None
    whole = view_schedule(world.leader.state, job.plan.job_id, world.now, 1000)
    short = view_schedule(world.leader.state, job.plan.job_id, world.now, 1)
    assert whole is not None
    assert short is not None
    assert len(whole.groups) > 1
    assert short.groups == whole.groups[:1]
    assert short.lanes == whole.lanes


def test_a_rollout_that_was_taken_off_its_engine_says_how_full_the_engines_are() -> None:
    world = Watched(POOL)
    submitted = world.submit(JOB)
    world.run(lambda: bool(world.reasons[WaitReason.RUNNING]))
    assert world.leader is not None
    state = world.leader.state
    job = state.jobs[submitted.plan.job_id]
    group, rollout = next(
        (g, r) for g in job.groups.values() for r in g.rollouts if r.host is not None
    )
    placement.suspend(Pass(state, world.now), job, group, rollout)
    wait = waits.wait_of(state, job, group, rollout, world.now)
    assert wait.reason is WaitReason.PAUSED_BY_PRESSURE
    assert [name for name, _ in wait.numbers] == ["kv_held", "kv_tokens"]
