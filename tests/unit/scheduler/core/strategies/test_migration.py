"""When a rollout whose gap begins moves to another engine."""

from dataclasses import replace

import pytest

from domain.commands import PlaceRollout
from domain.plan import Mechanism, Scheduling, StrategyName
from scheduler.core.migration import LEVEL_GAP, LOOKED_AT
from scheduler.core.records import RolloutRecord
from scheduler.core.strategies.venus import LOOK_AGAIN_S
from tests.simulation.plans import pool
from tests.unit.scheduler.core.bench import Bench, engine_id
from tests.unit.scheduler.core.strategies.stand import finished, job_of, sampled, stand

KV_TOKENS = 1000


def rollouts(members: int, engines: int, off: tuple[Mechanism, ...] = ()) -> Bench:
    """One group whose members are placed, each beside as few others as possible."""
    job = job_of(StrategyName.VENUS, group_size=members, groups_per_batch=1, async_ratio=1.0)
    job = replace(job, scheduling=Scheduling(off=off))
    bench = stand(job, engines, KV_TOKENS, pool(engines=engines, sandboxes=200))
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
    return bench


def moves(bench: Bench, rollout: RolloutRecord, tokens: int) -> list[tuple[str, str | None]]:
    """Where the rollout goes, and from where, when its gap begins with so many tokens."""
    before = len(bench.found(PlaceRollout, bench.commands))
    sampled(bench, rollout, tokens)
    after = bench.found(PlaceRollout, bench.commands)[before:]
    assert all(place.rollout_id == rollout.rollout_id for place in after)
    return [(place.host_id, place.kv_from) for place in after]


def on(bench: Bench, engine: int) -> list[RolloutRecord]:
    return [r for r in bench.group(0).rollouts if r.host == engine_id(engine)]


def test_it_leaves_the_fuller_engine_for_one_that_stays_emptier_with_it() -> None:
    bench = rollouts(4, engines=2)
    first, second = on(bench, 0)
    assert moves(bench, first, 300) == [], "alone it would only carry its load elsewhere"
    assert moves(bench, second, 100) == [(engine_id(1), engine_id(0))]


def test_it_stays_where_the_other_engine_would_be_as_full() -> None:
    bench = rollouts(4, engines=2)
    first, second = on(bench, 0)
    moves(bench, first, round(LEVEL_GAP * KV_TOKENS))
    assert moves(bench, second, 100) == []


def test_what_moved_does_not_move_back() -> None:
    bench = rollouts(4, engines=2)
    first, second = on(bench, 0)
    moves(bench, first, 300)
    moves(bench, second, 100)
    for rollout in on(bench, 1):
        assert moves(bench, rollout, 100) == []


def test_it_stays_where_no_other_engine_has_room_and_the_next_look_is_later() -> None:
    bench = rollouts(4, engines=2)
    first, second = on(bench, 0)
    (one, other) = on(bench, 1)
    for rollout, tokens in ((first, 500), (one, 400), (other, 350)):
        moves(bench, rollout, tokens)
    assert moves(bench, second, 470) == [], "750 and 470 would be too much"
    bench.close(one)
    bench.close(other)
    assert moves(bench, second, 470) == [], "asked again at once, without a look"
    bench.tick(LOOK_AGAIN_S)
    assert moves(bench, second, 470) == [(engine_id(1), engine_id(0))]


def test_nothing_moves_with_migration_off() -> None:
    bench = rollouts(4, engines=2, off=(Mechanism.MIGRATION,))
    first, second = on(bench, 0)
    assert moves(bench, first, 300) + moves(bench, second, 100) == []


@pytest.mark.parametrize("empty", [LOOKED_AT, 3 * LOOKED_AT])
def test_a_job_of_many_engines_is_looked_through_a_few_at_a_time(empty: int) -> None:
    """Of all engines one is emptier: the gap of some turn finds it."""
    engines = 4 * LOOKED_AT
    bench = rollouts(engines + 1, engines)
    order = [host.host_id for host in bench.core.state.engines_of(bench.job())]
    first, second = (r for r in bench.group(0).rollouts if r.host == order[0])
    for rollout in bench.group(0).rollouts:
        if rollout.host not in (order[0], order[empty]):
            sampled(bench, rollout, 400)
    moves(bench, first, 400)
    for _ in range(engines):
        went = moves(bench, second, 100)
        assert went in ([], [(order[empty], order[0])])
        if went:
            break
        finished(bench, second, 100)
    assert second.host == order[empty]
