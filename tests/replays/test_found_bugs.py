"""Event lists of bugs that random worlds found; each must stay right under all checks."""

from dataclasses import replace

from domain.commands import DropGroup, OpenGroup
from domain.events import (
    EngineSynced,
    Event,
    GroupGraded,
    HeldRollout,
    HostJoined,
    JobSubmitted,
    RestoredGroup,
    RestoredHost,
    RestoredJob,
    RestoredRollout,
    RolloutClosed,
    SandboxReady,
    StateRestored,
    StepCommitted,
    Tick,
    TrainerReady,
    TryFailed,
    TurnFinished,
)
from domain.ids import RolloutId, group_id, host_id, node_host_id, rollout_id
from domain.plan import EvaluationPlan
from domain.states import Desired, End, HostKind, JobState, Purpose
from scheduler.core import evaluation
from tests.replays.replay import Record, replay
from tests.simulation.machines import policy_of
from tests.simulation.plans import POOL, plan

JOB = plan(groups_per_batch=1, max_staleness=1, async_ratio=3.0, max_steps=6)
ATTEMPT = JOB.attempt_id
NODE = node_host_id(0)
ENGINE, TRAINER = host_id(ATTEMPT, "engine0"), host_id(ATTEMPT, "trainer")


def member(ordinal: int, index: int) -> RolloutId:
    return rollout_id(group_id(ATTEMPT, ordinal), index)


def closed(ordinal: int, index: int, version: int) -> RolloutClosed:
    name = member(ordinal, index)
    return RolloutClosed(name, 1, 1, End.DONE, version, version, 20, 20, 2)


def hosts() -> list[Event]:
    return [
        HostJoined(NODE, 1, HostKind.NODE, None, 0),
        HostJoined(TRAINER, 1, HostKind.TRAINER, ATTEMPT, 0),
        TrainerReady(ATTEMPT, TRAINER, 1, policy_of(ATTEMPT, 0, 1)),
        HostJoined(ENGINE, 1, HostKind.ENGINE, ATTEMPT, 8),
        EngineSynced(ENGINE, 1, 0),
    ]


def timed(events: list[Event]) -> list[Record]:
    return [(0.1 * index, event) for index, event in enumerate(events)]


def restored(**changes: object) -> StateRestored:
    row = RestoredJob(
        plan=JOB,
        generation=1,
        desired=Desired.RUN,
        state=JobState.RUNNING,
        base_step=0,
        committed_step=0,
        policy=policy_of(ATTEMPT, 0, 1),
        next_ordinal=0,
        unconsumed=(),
        groups=(),
        checkpoint_step=None,
        evaluated_steps=(),
    )
    rows = (
        RestoredHost(ENGINE, 1, HostKind.ENGINE, ATTEMPT, True, JOB.job_id),
        RestoredHost(NODE, 1, HostKind.NODE, None, True),
    )
    return StateRestored((replace(row, **changes),), rows)  # type: ignore[arg-type]


def test_a_new_try_of_a_group_that_left_its_class_is_ranked_anew() -> None:
    """The failed try held the group's oldest token; without it the group was no longer promoted."""
    forks: list[Event] = [
        SandboxReady(member(ordinal, index), 1, NODE, 1) for ordinal in (0, 1) for index in (0, 1)
    ]
    played: list[Event] = [closed(0, 0, 0), closed(0, 1, 0)]
    events = [
        JobSubmitted(JOB, 1),
        *hosts(),
        *forks,
        *played,
        GroupGraded(group_id(ATTEMPT, 0), 1, 2, False, 0, 0.5),
        TurnFinished(member(1, 0), 1, 1, 1, 10, 10, 0, 0.1),
        TurnFinished(member(1, 1), 1, 1, 1, 10, 10, 1, 0.1),
        StepCommitted(ATTEMPT, 1, policy_of(ATTEMPT, 1, 1)),
        EngineSynced(ENGINE, 1, 1),
        TryFailed(member(1, 0), 1, 1, End.ENV_FAILED, "crashed"),
        Tick(),
    ]
    core, _ = replay(POOL, timed(events))
    assert core.state.attempts[ATTEMPT].groups[group_id(ATTEMPT, 1)].rollouts[0].try_ == 2


def open_row(ordinal: int, version: int) -> RestoredGroup:
    name = group_id(ATTEMPT, ordinal)
    members = tuple(
        RestoredRollout(member(ordinal, index), 1, 1, 0, None, host_id=ENGINE) for index in (0, 1)
    )
    return RestoredGroup(name, Purpose.TRAIN, 2, 0.0, version, 0, members, False, None, None, None)


def test_open_groups_of_a_new_leader_are_not_dropped_for_unreported_versions() -> None:
    """Opened under version 0, sampled under 1: only the engine knows, and it joins later."""
    groups = (open_row(1, 0), open_row(2, 0))
    start = restored(
        committed_step=1, policy=policy_of(ATTEMPT, 1, 1), next_ordinal=3, groups=groups
    )
    held = tuple(HeldRollout(r.rollout_id, 1, 1, 1, 1) for g in groups for r in g.rollouts)
    sandboxes = tuple(HeldRollout(entry.rollout_id, 1, 0, 0) for entry in held)
    events: list[Event] = [
        start,
        Tick(),
        HostJoined(NODE, 1, HostKind.NODE, None, 0, sandboxes),
        HostJoined(ENGINE, 1, HostKind.ENGINE, ATTEMPT, 8, held, 1),
        Tick(),
    ]
    core, commands = replay(POOL, timed(events))
    assert not [command for command in commands if isinstance(command, DropGroup)]
    job = core.state.attempts[ATTEMPT]
    assert [job.last_valid_step(group) for group in job.training_groups()] == [3, 3]


def test_a_dropped_evaluation_group_is_not_opened_again_by_a_new_leader() -> None:
    """Its row is not among the live ones, so the count of live groups said it was never opened."""
    job = replace(JOB, evaluation=EvaluationPlan(3, 1, None))
    issued = tuple(evaluation.first_ordinal(0) + place for place in range(3))
    start = restored(plan=job, issued_evaluations=issued)
    events: list[Event] = [start, HostJoined(ENGINE, 1, HostKind.ENGINE, ATTEMPT, 8, (), 0)]
    events += [HostJoined(NODE, 1, HostKind.NODE, None, 0), Tick()]
    _, commands = replay(POOL, timed(events))
    opened = [command for command in commands if isinstance(command, OpenGroup)]
    assert all(command.purpose is Purpose.TRAIN for command in opened)


def test_an_engine_that_dials_a_new_leader_lets_groups_start_at_once() -> None:
    """Only a confirmed sync let groups start; an engine that is already synced confirms nothing."""
    events: list[Event] = [
        restored(),
        HostJoined(NODE, 1, HostKind.NODE, None, 0),
        HostJoined(ENGINE, 1, HostKind.ENGINE, ATTEMPT, 8, (), 0),
    ]
    _, commands = replay(POOL, timed(events))
    assert [command for command in commands if isinstance(command, OpenGroup)]


def test_a_new_try_does_not_make_its_group_older_than_it_was() -> None:
    """The position was given to a younger group because this one had reported version 1."""
    ready: list[Event] = [
        SandboxReady(member(ordinal, index), 1, NODE, 1) for ordinal in (0, 1) for index in (0, 1)
    ]
    first: list[Event] = [closed(0, 0, 0), closed(0, 1, 0)]
    young: list[Event] = [SandboxReady(member(2, index), 1, NODE, 1) for index in (0, 1)]
    events = [
        JobSubmitted(JOB, 1),
        *hosts(),
        *ready,
        *first,
        GroupGraded(group_id(ATTEMPT, 0), 1, 2, False, 0, 0.5),
        StepCommitted(ATTEMPT, 1, policy_of(ATTEMPT, 1, 1)),
        EngineSynced(ENGINE, 1, 1),
        TurnFinished(member(1, 0), 1, 1, 1, 10, 10, 1, 0.1),
        TurnFinished(member(1, 1), 1, 1, 1, 10, 10, 1, 0.1),
        *young,
        closed(2, 0, 1),
        closed(2, 1, 1),
        GroupGraded(group_id(ATTEMPT, 2), 1, 2, False, 1, 0.5),
        TryFailed(member(1, 0), 1, 1, End.ENV_FAILED, "crashed"),
        TryFailed(member(1, 1), 1, 1, End.ENV_FAILED, "crashed"),
        Tick(),
    ]
    core, commands = replay(POOL, timed(events))
    job = core.state.attempts[ATTEMPT]
    assert job.last_valid_step(job.groups[group_id(ATTEMPT, 1)]) == 3
    assert not [command for command in commands if isinstance(command, DropGroup)]
