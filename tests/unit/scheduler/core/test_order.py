"""The order of groups, the critical set, ranks."""

from dataclasses import replace
from typing import Any

from domain.commands import SetRanks
from domain.events import Remaining, TurnFinished
from domain.plan import EvaluationPlan, Mechanism, Order, Scheduling
from kv.ranks import RankClass
from scheduler.core import order
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench, gid


def running(kind: Order, **changes: Any) -> Bench:
    bench = Bench.running(replace(plan(**changes), order=kind))
    for group in list(bench.job().groups.values()):
        for rollout in group.rollouts:
            bench.ready(rollout)
    return bench


def ordinals(bench: Bench) -> list[int]:
    job = bench.job()
    groups = sorted(job.training_groups(), key=order.order_key(job))
    return [group.ordinal for group in groups]


def ordinals_of_unfinished(bench: Bench) -> list[int]:
    return [one for one in ordinals(bench) if bench.group(one).is_unfinished]


def test_oldest_orders_by_creation() -> None:
    bench = running(Order.OLDEST)
    bench.turn(bench.rollout(3), 1)
    assert ordinals(bench) == [0, 1, 2, 3]


def test_nearest_orders_by_the_slowest_unfinished_member() -> None:
    bench = running(Order.NEAREST, expected_turns=5)
    for index in (0, 1):
        bench.turn(bench.rollout(2, index), 3)
    bench.turn(bench.rollout(1, 0), 4)
    assert ordinals(bench) == [2, 0, 1, 3]


def test_longest_orders_the_other_way_round() -> None:
    bench = running(Order.LONGEST, expected_turns=5)
    for index in (0, 1):
        bench.turn(bench.rollout(0, index), 3)
    assert ordinals(bench) == [1, 2, 3, 0]


def test_finished_siblings_outweigh_the_plan_in_an_estimate() -> None:
    bench = running(Order.NEAREST, expected_turns=2)
    before = order.eta_s(bench.job(), bench.group(0))
    bench.close(bench.rollout(0, 0), turns=9)
    assert order.eta_s(bench.job(), bench.group(0)) > 2 * before


def epoch_of(bench: Bench, ordinals: list[int], turns: dict[int, int]) -> None:
    """Run these groups to their verdicts; group n works on task n mod 2."""
    for ordinal in ordinals:
        for rollout in bench.group(ordinal).rollouts:
            bench.ready(rollout, task=ordinal % 2)
        for rollout in list(bench.group(ordinal).rollouts):
            bench.close(rollout, turns=turns[ordinal % 2])
        bench.grade(bench.group(ordinal))


def test_a_long_task_that_comes_again_is_ranked_before_its_siblings_tell_anything() -> None:
    """Task 1 takes 30 turns, task 0 two; in the second epoch nobody has finished a turn yet."""
    bench = Bench.running(replace(plan(max_staleness=3, async_ratio=2.0), order=Order.LONGEST))
    epoch_of(bench, [0, 1, 2, 3], {0: 2, 1: 30})
    again = [g.ordinal for g in bench.job().training_groups() if g.is_unfinished]
    assert len(again) >= 3, "the second epoch is open"
    assert ordinals_of_unfinished(bench) == again, "all alike as long as no task is told"
    for ordinal in again:
        for rollout in bench.group(ordinal).rollouts:
            bench.ready(rollout, task=ordinal % 2)
    expected = sorted(again, key=lambda ordinal: (-(ordinal % 2), ordinal))
    assert ordinals_of_unfinished(bench) == expected
    first, last = bench.rollout(expected[0]), bench.rollout(expected[-1])
    assert first.turn == last.turn == 0
    assert first.rank < last.rank


def test_a_task_that_comes_again_is_told_once_a_group() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0), task=3)
    bench.ready(bench.rollout(0, 1), task=4)
    assert bench.group(0).task == 3


def test_with_the_predictor_off_a_task_s_history_says_nothing() -> None:
    off = Scheduling(off=(Mechanism.PREDICTOR,))
    bench = running(Order.NEAREST, scheduling=off)
    before = order.eta_s(bench.job(), bench.group(2))
    bench.job().history.add_rollout(50, 500, 9.0, task=3)
    bench.group(2).task = 3
    assert order.eta_s(bench.job(), bench.group(2)) == before


def test_a_learned_estimate_orders_its_group() -> None:
    bench = running(Order.NEAREST, expected_turns=5)
    for index in (0, 1):
        rollout = bench.rollout(2, index)
        left = Remaining(tokens=1.0, tokens_q90=2.0, tool_s=0.0, turns=1.0)
        bench.feed(
            TurnFinished(
                rollout.rollout_id, rollout.try_, rollout.hop, 1, 10, 10, 0, 0.0, remaining=left
            )
        )
    assert ordinals(bench)[0] == 2


def test_with_the_predictor_off_a_learned_estimate_says_nothing() -> None:
    off = Scheduling(off=(Mechanism.PREDICTOR,))
    bench = running(Order.NEAREST, expected_turns=5, scheduling=off)
    before = order.eta_s(bench.job(), bench.group(2))
    bench.group(2).rollouts[0].remaining = Remaining(9_000.0, 9_900.0, 60.0, 50.0)
    bench.close(bench.rollout(1, 0), turns=9)
    assert order.eta_s(bench.job(), bench.group(2)) == before


def test_the_critical_set_is_what_the_next_batch_still_needs() -> None:
    bench = running(Order.OLDEST)
    critical = [g.ordinal for g in bench.job().training_groups() if g.is_critical]
    assert critical == [0, 1]
    for rollout in bench.group(2).rollouts:
        bench.close(rollout)
    bench.grade(bench.group(2))
    critical = [g.ordinal for g in bench.job().training_groups() if g.is_critical]
    assert critical == [0]
    assert order.need(bench.job()) == 1


def test_a_group_enters_the_critical_set_only_by_the_margin() -> None:
    bench = running(Order.NEAREST, groups_per_batch=1, async_ratio=2.0, expected_turns=20)
    for index in (0, 1):
        bench.turn(bench.rollout(0, index), 1)
    order.choose_critical(bench.job())
    for index in (0, 1):
        bench.turn(bench.rollout(1, index), 2)
    order.choose_critical(bench.job())
    assert bench.group(0).is_critical
    for index in (0, 1):
        bench.turn(bench.rollout(1, index), 12)
    order.choose_critical(bench.job())
    assert bench.group(1).is_critical
    assert not bench.group(0).is_critical


def test_a_starved_group_becomes_critical_after_a_number_of_batches() -> None:
    bench = running(
        Order.NEAREST, groups_per_batch=1, max_staleness=9, async_ratio=3.0, max_steps=9
    )
    job = bench.job()
    job.groups[gid(0)].opened_at_step = job.committed - order.AGEING_BATCHES
    for ordinal in (1, 2):
        for index in (0, 1):
            bench.turn(bench.rollout(ordinal, index), 2)
    order.choose_critical(job)
    assert bench.group(0).is_critical


def test_ranks_put_evaluation_before_promoted_before_critical_before_normal() -> None:
    bench = Bench.running(plan(evaluation=EvaluationPlan(1, 1, None), max_staleness=0))
    evaluated = next(g for g in bench.job().groups.values() if not g.is_training)
    classes = {order.class_of(bench.job(), g) for g in bench.job().training_groups()}
    assert order.class_of(bench.job(), evaluated) == RankClass.EVALUATION
    assert classes == {RankClass.PROMOTED}
    assert list(RankClass) == sorted(RankClass)


def test_inside_a_group_the_longest_remaining_runs_first() -> None:
    bench = running(Order.OLDEST)
    commands = bench.turn(bench.rollout(0, 0), 1)
    ranks = dict(bench.found(SetRanks, commands)[0].ranks)
    first, second = (bench.rollout(0, index) for index in (0, 1))
    assert ranks == {first.rollout_id: first.rank, second.rollout_id: second.rank}
    assert second.rank < first.rank


def test_an_unchanged_rank_is_not_sent_again() -> None:
    bench = running(Order.OLDEST)
    bench.turn(bench.rollout(0, 0), 1)
    assert bench.found(SetRanks, bench.turn(bench.rollout(0, 0), 2)) == []
