"""A new leader: what is adopted, what is placed again, what waits for a host's fate."""

from dataclasses import replace

from domain.commands import (
    AssignGroup,
    CloseStep,
    EndTry,
    FinishEvaluation,
    ForkSandboxes,
    GradeGroup,
    GrantGang,
    PlaceRollout,
    ReleaseGang,
    SetJobState,
)
from domain.events import (
    GroupGraded,
    RestoredGroup,
    RestoredHost,
    RestoredJob,
    RestoredRollout,
    StateRestored,
)
from domain.ids import GroupId, HostId, RolloutId, node_host_id, ordinal_of, rollout_id
from domain.plan import EvaluationPlan, JobPlan, Priority
from domain.states import Desired, End, HostKind, JobState, Purpose
from scheduler.core import evaluation
from scheduler.core.records import SandboxState
from tests.simulation.plans import plan, pool
from tests.unit.scheduler.core.bench import Bench, engine_id, gid, held, policy, trainer_id
from tests.unit.scheduler.core.rooms import EACH, TEMPLATE, parts, room, tell

JOB = plan(max_steps=9)


def member(group: GroupId, index: int, **changes: object) -> RestoredRollout:
    row = RestoredRollout(rollout_id(group, index), 1, 0, 0, None)
    return replace(row, **changes)  # type: ignore[arg-type]


def group_row(ordinal: int, *rollouts: RestoredRollout, **changes: object) -> RestoredGroup:
    name = gid(ordinal)
    members = rollouts or tuple(member(name, index) for index in range(2))
    purpose = Purpose.TRAIN if ordinal < 900_000_000 else Purpose.EVALUATION
    row = RestoredGroup(name, purpose, len(members), 0.0, 0, 0, members, False, None, None, None)
    return replace(row, **changes)  # type: ignore[arg-type]


def ended(ordinal: int, **changes: object) -> RestoredGroup:
    name = gid(ordinal)
    rows = [member(name, i, closed_end=End.DONE, oldest_version=0, hop=1) for i in range(2)]
    return group_row(ordinal, *rows, closed=True, **changes)


def graded(ordinal: int, version: int = 0, flat: bool = False) -> GroupGraded:
    return GroupGraded(gid(ordinal), 1, 2, flat, version, 0.5)


def host_row(host: HostId, kind: HostKind, claimed: bool = True) -> RestoredHost:
    attempt = None if kind is HostKind.NODE else JOB.attempt_id
    return RestoredHost(host, 1, kind, attempt, claimed, None if attempt is None else JOB.job_id)


HOSTS = (
    host_row(trainer_id(), HostKind.TRAINER),
    host_row(engine_id(0), HostKind.ENGINE),
    host_row(engine_id(1), HostKind.ENGINE),
    host_row(node_host_id(0), HostKind.NODE),
)


def job_row(*groups: RestoredGroup, **changes: object) -> RestoredJob:
    issued = [ordinal_of(g.group_id) for g in groups if g.purpose is Purpose.TRAIN]
    row = RestoredJob(
        plan=JOB,
        generation=1,
        desired=Desired.RUN,
        state=JobState.RUNNING,
        base_step=0,
        committed_step=0,
        policy=policy(0),
        next_ordinal=max(issued, default=-1) + 1,
        unconsumed=(),
        groups=groups,
        checkpoint_step=None,
        evaluated_steps=(),
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def restored(row: RestoredJob, hosts: tuple[RestoredHost, ...] = HOSTS) -> Bench:
    bench = Bench()
    bench.feed(StateRestored((row,), hosts))
    return bench


def placed_row(ordinal: int = 0, host: HostId | None = None) -> RestoredGroup:
    name = gid(ordinal)
    return group_row(
        ordinal, member(name, 0, hop=3, host_id=host), member(name, 1, closed_end=End.DONE)
    )


def plan_with_evaluation() -> JobPlan:
    return replace(JOB, evaluation=EvaluationPlan(3, 2, None))


def test_nothing_is_forked_or_placed_before_the_claimed_hosts_have_spoken() -> None:
    bench = restored(job_row(placed_row(host=engine_id(0)), group_row(1)))
    bench.tick()
    assert bench.forked() == []
    assert bench.placed() == []


def test_a_group_keeps_its_task_and_teaches_it_to_the_new_leader() -> None:
    bench = restored(job_row(replace(placed_row(host=engine_id(0)), task=5)))
    rollout = bench.rollout(0)
    bench.node(held=(held(rollout),))
    bench.engine(JOB, 0, held=(held(rollout, 4, 0),), version=0)
    history = bench.job().history
    assert history.tasks.turns == {}
    bench.close(rollout, turns=30)
    assert history.tasks.weighted(5) == (30.0, 1.0)


def test_a_rollout_held_at_the_same_try_and_hop_is_adopted() -> None:
    bench = restored(job_row(placed_row(host=engine_id(0))))
    rollout = bench.rollout(0)
    bench.node(held=(held(rollout),))
    bench.engine(JOB, 0, held=(held(rollout, 4, 0),), version=0)
    assert (rollout.host, rollout.hop, rollout.turn, rollout.oldest_version) == (
        engine_id(0),
        3,
        4,
        0,
    )
    assert bench.placed() == []


def test_a_rollout_whose_host_does_not_hold_it_is_placed_again_with_a_raised_hop() -> None:
    bench = restored(job_row(placed_row(host=engine_id(0))))
    bench.node(held=(held(bench.rollout(0)),))
    bench.engine(JOB, 1, version=0)
    assert bench.placed() == [], "engine 0 may still hold it"
    bench.engine(JOB, 0, version=0)
    assert [(p.hop, p.try_) for p in bench.placed()] == [(4, 1)]


def test_a_rollout_of_a_lost_host_is_placed_again() -> None:
    bench = restored(job_row(placed_row(host=engine_id(0))))
    bench.node(held=(held(bench.rollout(0)),))
    bench.engine(JOB, 1, version=0)
    placed = bench.found(PlaceRollout, bench.lost(engine_id(0)))
    assert [(p.host_id, p.hop) for p in placed] == [(engine_id(1), 4)]


def test_an_unnamed_placement_waits_for_all_engines() -> None:
    bench = restored(job_row(placed_row(host=None)))
    bench.node(held=(held(bench.rollout(0)),))
    bench.engine(JOB, 1, version=0)
    assert bench.placed() == []
    bench.engine(JOB, 0, held=(held(bench.rollout(0)),), version=0)
    assert bench.placed() == []
    assert bench.rollout(0).host == engine_id(0)


def test_a_stale_hop_is_not_adopted() -> None:
    bench = restored(job_row(placed_row(host=engine_id(0))))
    old = replace(held(bench.rollout(0)), hop=2)
    bench.node(held=(held(bench.rollout(0)),))
    bench.engine(JOB, 0, held=(old,), version=0)
    assert [p.hop for p in bench.placed()] == [4]


def test_a_try_that_no_node_holds_is_forked_again_as_the_same_try() -> None:
    bench = restored(job_row(group_row(0)))
    bench.node()
    assert [fork.members for fork in bench.forked()] == [
        ((RolloutId("ro_a_000000000_000"), 1), (RolloutId("ro_a_000000000_001"), 1))
    ]
    assert bench.found(EndTry, bench.commands) == []


def test_a_try_that_the_node_holds_needs_no_new_sandbox() -> None:
    bench = restored(job_row(group_row(0)))
    bench.engine(JOB, 0, version=0)
    bench.engine(JOB, 1, version=0)
    rollouts = bench.group(0).rollouts
    bench.node(held=tuple(held(rollout) for rollout in rollouts))
    assert [p.rollout_id for p in bench.placed()] == [r.rollout_id for r in rollouts]
    assert all(fork.group_id != gid(0) for fork in bench.forked())


def test_with_no_claimed_host_everything_starts_over_at_once() -> None:
    bench = restored(job_row(placed_row(host=engine_id(0))), hosts=())
    bench.node()
    assert [len(fork.members) for fork in bench.forked()][:1] == [1]


def test_graded_and_assigned_groups_take_their_places_again() -> None:
    assigned = ended(0, graded=graded(0), assigned_step=1, assigned_position=1, grade_epoch=1)
    bench = restored(job_row(assigned, ended(1, graded=graded(1), grade_epoch=1)))
    assert [(a.position, a.group_id) for a in bench.found(AssignGroup)] == [(0, gid(1))]
    commands = bench.trainer(JOB)
    assert bench.found(CloseStep, commands) == [CloseStep(JOB.attempt_id, 1)]


def test_a_closed_group_without_verdicts_is_graded_under_a_raised_epoch() -> None:
    bench = restored(job_row(ended(0, grade_epoch=4)))
    bench.node()
    assert [g.grade_epoch for g in bench.found(GradeGroup)] == [5]


def test_a_step_that_was_committed_meanwhile_is_told_by_the_trainer() -> None:
    rows = [
        ended(i, graded=graded(i), assigned_step=1, assigned_position=i, grade_epoch=1)
        for i in range(2)
    ]
    bench = restored(job_row(*rows))
    bench.trainer(JOB, version=1)
    assert bench.job().committed == 1
    assert bench.job().groups == {}


def test_hosts_of_an_attempt_that_is_not_active_are_released() -> None:
    bench = Bench()
    commands = bench.feed(StateRestored((), HOSTS))
    assert bench.found(ReleaseGang, commands) == [ReleaseGang(JOB.job_id, JOB.attempt_id)]


def test_a_provisioning_job_asks_for_its_hosts_again() -> None:
    bench = restored(job_row(state=JobState.PROVISIONING, policy=None), hosts=())
    assert [g.engines for g in bench.found(GrantGang)] == [1]


def test_a_paused_job_with_host_rows_releases_them_and_stays_paused() -> None:
    row = job_row(group_row(0), state=JobState.PAUSED, desired=Desired.PAUSE)
    bench = restored(row)
    assert len(bench.found(ReleaseGang)) == 1
    assert bench.job().state is JobState.PAUSED


def test_a_pause_of_the_core_itself_survives_by_its_reason() -> None:
    bench = restored(job_row(state=JobState.PAUSED, reason="no_signal: flat"), hosts=())
    assert bench.job().state is JobState.PAUSED
    bench.desire(Desired.RUN)
    assert bench.job().state is JobState.RESUMING


def test_a_wish_that_no_leader_has_answered_is_followed() -> None:
    row = job_row(state=JobState.PAUSED, generation=5, observed_generation=4, reason="no_signal")
    bench = restored(row, hosts=())
    assert bench.job().state is JobState.RESUMING
    assert {s.observed_generation for s in bench.found(SetJobState)} == {5}


def test_a_pausing_job_goes_on_pausing() -> None:
    row = job_row(group_row(0), state=JobState.PAUSING, desired=Desired.PAUSE)
    bench = restored(row)
    assert bench.job().state is JobState.PAUSING
    bench.tick(10.0)
    assert bench.job().state is JobState.PAUSED
    assert bench.found(GrantGang, bench.commands) == []


def test_a_cancelling_job_is_cancelled() -> None:
    row = job_row(group_row(0), state=JobState.CANCELLING, desired=Desired.CANCEL)
    bench = restored(row)
    assert JobState.CANCELLED in [s.state for s in bench.found(SetJobState)]


def test_queued_jobs_keep_their_order() -> None:
    first, second = plan("b"), plan("c")
    rows = tuple(
        replace(job_row(), plan=job, state=JobState.QUEUED, policy=None) for job in (first, second)
    )
    bench = Bench()
    bench.feed(StateRestored((job_row(), *rows), HOSTS))
    assert [bench.job(name).queue_position for name in ("b", "c")] == [1, 2]


def test_a_resuming_or_new_job_goes_on() -> None:
    bench = restored(job_row(group_row(0), state=JobState.RESUMING))
    assert len(bench.found(GrantGang)) == 1
    bench.engine(JOB, 0, version=0)
    bench.node()
    assert bench.forked() == []
    bench.trainer(JOB)
    assert bench.job().state is JobState.RUNNING
    assert bench.forked()[0].group_id == gid(0)
    bench = restored(job_row(state=JobState.VALIDATING, policy=None), hosts=())
    assert bench.job().state is JobState.PROVISIONING


def test_a_resuming_job_whose_hosts_are_up_holds_them_before_anything_is_granted() -> None:
    """They joined no second time, so a later grant of the same rows waited for them for ever."""
    waiting = replace(
        job_row(), plan=plan("b", priority=Priority.HIGH), state=JobState.QUEUED, policy=None
    )
    resuming = job_row(state=JobState.RESUMING)
    bench = Bench(pool(engines=2, trainers=1))
    bench.feed(StateRestored((waiting, resuming), HOSTS))
    assert [grant.job_id for grant in bench.found(GrantGang)] == [JOB.job_id]
    assert bench.job("b").gang is None
    bench.engine(JOB, 0, version=0)
    bench.node()
    bench.trainer(JOB)
    assert bench.job().state is JobState.RUNNING


def test_a_resuming_job_without_hosts_queues_again() -> None:
    bench = restored(job_row(state=JobState.RESUMING), hosts=())
    assert len(bench.found(GrantGang)) == 1


def test_an_evaluation_goes_on_where_it_stood() -> None:
    base = evaluation.first_ordinal(0)
    row = job_row(
        group_row(base + 1), plan=plan_with_evaluation(), issued_evaluations=(base, base + 1)
    )
    bench = restored(row)
    bench.node()
    bench.trainer(JOB)
    for index in (0, 1):
        bench.engine(JOB, index, version=0)
    evaluations = [c.ordinal for c in bench.opened() if c.ordinal >= base]
    assert evaluations == [base + 2]


def test_an_older_evaluation_that_no_engine_can_serve_is_cut_short() -> None:
    base = evaluation.first_ordinal(0)
    row = job_row(
        group_row(base),
        plan=plan_with_evaluation(),
        issued_evaluations=(base,),
        committed_step=1,
        policy=policy(1),
    )
    bench = restored(row)
    bench.node()
    bench.trainer(JOB, version=1)
    for index in (0, 1):
        bench.engine(JOB, index, version=1)
    bench.tick()
    for rollout in bench.group(base).rollouts:
        last = bench.close(rollout, None, End.CANCELLED)
    assert bench.found(FinishEvaluation, last) == [FinishEvaluation(JOB.attempt_id, 0)]


def test_two_leaders_in_a_row_start_from_the_rows_alone() -> None:
    bench = restored(job_row(group_row(0)))
    bench.node()
    commands = bench.feed(StateRestored((job_row(group_row(0)),), HOSTS))
    assert bench.found(ForkSandboxes, commands) == []
    assert bench.job().sandboxes == 2


def test_what_nodes_hold_or_still_make_is_asked_of_no_other_node() -> None:
    """A fork was on its way when the leader died: a second one would make a second sandbox."""
    roomy = replace(JOB, templates=(TEMPLATE,))
    other = host_row(node_host_id(1), HostKind.NODE)
    bench = restored(job_row(group_row(0), plan=roomy), (*HOSTS, other))
    first, second = bench.group(0).rollouts
    bench.node(1, held=())
    tell(bench, 1, room(900))
    bench.tick()
    assert bench.forked() == [], "the other node may hold them"
    starting = replace(held(second), is_starting=True)
    bench.node(0, held=(held(first), starting))
    tell(bench, 0, room(100))
    assert (first.sandbox, second.sandbox) == (SandboxState.READY, SandboxState.ASKED)
    bench.tick(10.0)
    asked = {fork.node for fork in bench.forked() if fork.group_id == bench.group(0).group_id}
    assert asked <= {node_host_id(0)}
    bench.ready(second, node_host_id(0))


def test_a_new_leader_places_by_room_once_nodes_have_said_it() -> None:
    roomy = replace(JOB, templates=(TEMPLATE,))
    other = host_row(node_host_id(1), HostKind.NODE)
    bench = restored(job_row(group_row(0), plan=roomy), (*HOSTS, other))
    bench.node(0)
    tell(bench, 0, room(EACH - 1))
    bench.node(1)
    tell(bench, 1, room(2 * EACH))
    bench.tick()
    assert parts(bench) == [(node_host_id(1), 2)]
