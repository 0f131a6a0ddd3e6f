"""Held-out evaluation: pinned version, outside pacing and batches, ahead of training."""

from domain.commands import (
    AssignGroup,
    CloseRollout,
    FinishEvaluation,
    NoteJob,
    OpenGroup,
    PlaceRollout,
    SyncEngine,
)
from domain.ids import EVALUATION_ORDINAL_BASE, EVALUATION_ORDINALS_PER_STEP
from domain.plan import EvaluationPlan
from domain.states import End, Purpose
from scheduler.core import evaluation, order
from scheduler.core.records import GroupPhase, GroupRecord
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench, engine_id

JOB = plan(evaluation=EvaluationPlan(tasks=3, rollouts_per_task=2, every_steps=2), max_steps=4)
BASE = EVALUATION_ORDINAL_BASE


def evaluated(bench: Bench) -> list[GroupRecord]:
    groups = bench.job().groups.values()
    return [group for group in groups if not group.is_training and group.is_unfinished]


def finish(bench: Bench, version: int = 0) -> list[FinishEvaluation]:
    found: list[FinishEvaluation] = []
    while groups := evaluated(bench):
        found += bench.found(FinishEvaluation, bench.play(groups[0], version))
    return found


def step(bench: Bench, number: int) -> None:
    """Train the groups of one step and sync the engine."""
    while len(bench.job().positions) < JOB.groups_per_batch:
        group = next(g for g in bench.job().training_groups() if g.is_unfinished)
        bench.play(group, group.policy_version)
    bench.commit(number)


def test_an_evaluation_is_due_at_step_zero_every_n_and_at_the_last() -> None:
    bench = Bench.running(plan(evaluation=EvaluationPlan(3, 2, 3), max_steps=8))
    assert [s for s in range(9) if evaluation.is_due(bench.job(), s)] == [0, 3, 6, 8]


def test_without_a_plan_nothing_is_due() -> None:
    assert not evaluation.is_due(Bench.running().job(), 0)


def test_step_zero_is_evaluated_before_any_training_group_starts() -> None:
    bench = Bench.running(JOB)
    first = bench.opened()[:3]
    assert [c.purpose for c in first] == [Purpose.EVALUATION] * 3
    assert [c.ordinal for c in first] == [BASE, BASE + 1, BASE + 2]
    assert {c.policy_version for c in first} == {0}


def test_evaluation_groups_enter_neither_pacing_nor_need_nor_a_batch() -> None:
    bench = Bench.running(JOB)
    assert len(bench.job().training_groups()) == 4
    assert order.need(bench.job()) == 2
    commands = bench.play(evaluated(bench)[0])
    assert bench.found(AssignGroup, commands) == []
    assert order.need(bench.job()) == 2


def test_an_evaluation_finishes_when_all_its_groups_are_graded_or_closed() -> None:
    bench = Bench.running(JOB)
    assert finish(bench) == [FinishEvaluation(JOB.attempt_id, 0)]
    assert bench.job().evaluated == {0}


def test_an_evaluation_group_without_any_trajectory_does_not_hold_it_up() -> None:
    bench = Bench.running(JOB)
    group = evaluated(bench)[0]
    for rollout in group.rollouts:
        bench.close(rollout, None, End.ENV_FAILED)
    assert group.group_id not in bench.job().groups
    assert finish(bench) == [FinishEvaluation(JOB.attempt_id, 0)]


def test_open_evaluation_rollouts_are_bounded_by_engine_slots() -> None:
    bench = Bench.running(plan(evaluation=EvaluationPlan(64, 1, None), max_steps=9))
    slots = 8 * evaluation.EVALUATION_ROLLOUTS_PER_SLOT
    assert len(evaluated(bench)) == slots
    assert not bench.job().training_groups()
    bench.play(evaluated(bench)[0])
    assert len(evaluated(bench)) == slots


def test_evaluation_rollouts_run_only_on_engines_of_exactly_their_version() -> None:
    bench = Bench.running(JOB, engines=2)
    finish(bench)
    step(bench, 1)
    for index in (0, 1):
        bench.synced(JOB, index, 1)
    step(bench, 2)
    bench.synced(JOB, 1, 2)
    group = evaluated(bench)[0]
    assert group.ordinal == BASE + 2 * EVALUATION_ORDINALS_PER_STEP
    placed = [p for r in group.rollouts for p in bench.found(PlaceRollout, bench.ready(r))]
    assert {p.host_id for p in placed} == {engine_id(1)}


def test_an_engine_with_an_open_evaluation_defers_its_sync_until_it_is_done() -> None:
    bench = Bench.running(JOB)
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    assert bench.found(SyncEngine, bench.commit(1)) == []
    synced: list[SyncEngine] = []
    while groups := evaluated(bench):
        synced = bench.found(SyncEngine, bench.play(groups[0]))
    assert [s.policy.version for s in synced] == [1]


def test_past_the_named_limit_the_evaluation_ends_with_what_it_has() -> None:
    bench = Bench.running(JOB)
    bench.play(evaluated(bench)[0])
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    bench.commit(1)
    groups = evaluated(bench)
    commands = bench.tick(evaluation.EVALUATION_SYNC_DEFER_S + 1)
    assert next(n.type for n in bench.found(NoteJob, commands)) == "job.evaluation_cut_short"
    causes = [c.cause for c in bench.found(CloseRollout, commands)]
    assert causes[:4] == ["sync_deferral_limit"] * 4
    assert [s.policy.version for s in bench.found(SyncEngine, commands)] == [1]
    for group in groups:
        for rollout in group.rollouts:
            last = bench.close(rollout, None, End.CANCELLED)
    assert bench.found(FinishEvaluation, last) == [FinishEvaluation(JOB.attempt_id, 0)]


def test_a_new_engine_joins_at_the_version_of_the_unfinished_evaluation() -> None:
    bench = Bench.running(JOB)
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    bench.commit(1)
    bench.lost(engine_id())
    commands = bench.engine(JOB, 0, epoch=2)
    assert [s.policy.version for s in bench.found(SyncEngine, commands)] == [0]


def test_training_groups_start_only_after_all_evaluation_groups_are_open() -> None:
    bench = Bench.running(plan(evaluation=EvaluationPlan(20, 1, None), max_steps=9))
    for _ in range(4):
        assert not bench.job().training_groups()
        bench.play(evaluated(bench)[0])
    bench.play(evaluated(bench)[0])
    assert bench.job().training_groups()


def test_ordinals_of_an_evaluation_name_their_step_and_place() -> None:
    ordinal = evaluation.first_ordinal(7) + 12
    assert evaluation.place_of(ordinal) == (7, 12)


def test_a_closed_evaluation_group_is_graded_like_any_other() -> None:
    bench = Bench.running(JOB)
    group = evaluated(bench)[0]
    for rollout in group.rollouts:
        bench.ready(rollout)
        bench.close(rollout)
    assert group.phase is GroupPhase.GRADING
    assert isinstance(bench.opened()[0], OpenGroup)
