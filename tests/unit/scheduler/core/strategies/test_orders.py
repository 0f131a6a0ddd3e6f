"""Strategies that are an order."""

import itertools

import pytest

from domain.commands import AssignGroup
from domain.ids import AttemptId
from domain.plan import Scheduling, StrategyName
from kv.ranks import VALUE_SPAN, RankClass, class_of
from scheduler.core.strategies import rules_for
from scheduler.core.strategies.orders import Oracle, Random, draw, group_estimate
from scheduler.core.strategies.venus import Venus
from tests.unit.scheduler.core.bench import Bench, gid
from tests.unit.scheduler.core.strategies.stand import finished, job_of, stand


def placed(strategy: StrategyName, groups: int = 3) -> Bench:
    """Groups of two, all placed."""
    bench = stand(job_of(strategy, groups_per_batch=groups, async_ratio=1.0))
    for ordinal in range(groups):
        for rollout in bench.group(ordinal).rollouts:
            bench.ready(rollout)
    return bench


def by_rank(bench: Bench) -> list[int]:
    """Ordinals of the unfinished groups, best first."""
    groups = [group for group in bench.job().training_groups() if group.open_rollouts()]
    return [g.ordinal for g in sorted(groups, key=lambda g: min(r.rank for r in g.open_rollouts()))]


@pytest.mark.parametrize("strategy", list(StrategyName))
def test_every_name_has_rules_of_its_own_job(strategy: StrategyName) -> None:
    assert rules_for(Scheduling(strategy)).scheduling.strategy is strategy


def test_longest_runs_groups_of_unknown_length_before_those_that_showed_theirs() -> None:
    bench = placed(StrategyName.LONGEST)
    bench.close(bench.rollout(0, 0), turns=5)
    bench.close(bench.rollout(1, 0), turns=9)
    assert by_rank(bench) == [2, 1, 0]


def test_longest_has_one_class_and_no_promotion() -> None:
    bench = placed(StrategyName.LONGEST)
    ranks = [r.rank for group in bench.job().training_groups() for r in group.rollouts]
    assert {class_of(rank) for rank in ranks} == {RankClass.NORMAL}


def test_longest_takes_groups_as_they_complete() -> None:
    bench = placed(StrategyName.LONGEST)
    for ordinal in (2, 0):
        for rollout in bench.group(ordinal).rollouts:
            bench.close(rollout)
        bench.grade(bench.group(ordinal))
    taken = [c.group_id for c in bench.found(AssignGroup, bench.commands)]
    assert taken == [gid(2), gid(0)]


def test_the_estimate_of_a_group_is_its_longest_finished_member_or_the_cap() -> None:
    assert group_estimate([30, 90, 60], 1000) == 90
    assert group_estimate([], 1000) == 1000


def test_oracle_and_random_are_venus() -> None:
    assert issubclass(Oracle, Venus)
    assert issubclass(Random, Venus)
    assert Oracle.value is Venus.value
    assert Random.value is not Venus.value


def test_a_draw_depends_on_attempt_and_ordinal_alone() -> None:
    first, second = AttemptId("att_a"), AttemptId("att_b")
    assert draw(first, 3) == draw(first, 3) == 816_676_511_552
    assert draw(first, 3) != draw(second, 3)
    drawn = [draw(first, ordinal) for ordinal in range(500)]
    assert len(set(drawn)) == 500
    assert all(0 <= value < VALUE_SPAN for value in drawn)


def test_draws_know_nothing_of_the_ordinal() -> None:
    drawn = [draw(AttemptId("att_a"), ordinal) for ordinal in range(1000)]
    rising = sum(1 for one, two in itertools.pairwise(drawn) if two > one)
    assert 450 < rising < 550
    assert 0.45 < sum(drawn) / len(drawn) / VALUE_SPAN < 0.55


def test_random_ranks_and_chooses_its_critical_groups_by_the_draw() -> None:
    bench = stand(job_of(StrategyName.RANDOM, groups_per_batch=3, async_ratio=2.0, max_staleness=4))
    bench.tick()
    job = bench.job()
    drawn = sorted(range(6), key=lambda ordinal: draw(job.attempt_id, ordinal))
    assert drawn != list(range(6))
    assert by_rank(bench) == drawn
    assert sorted(drawn[:3]) == [g.ordinal for g in job.training_groups() if g.is_critical]


def test_ttl_serves_programs_in_the_order_of_their_tasks() -> None:
    bench = placed(StrategyName.TTL)
    finished(bench, bench.rollout(0, 0), 50)
    assert by_rank(bench) == [0, 1, 2]
