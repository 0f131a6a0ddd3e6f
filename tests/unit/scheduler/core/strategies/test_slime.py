"""slime's three modes through the coordinator."""

from typing import Any

from domain.commands import AssignGroup, DropGroup
from domain.ids import REPEAT_SPAN
from domain.plan import StrategyName
from domain.states import DropReason
from tests.unit.scheduler.core.bench import Bench, gid
from tests.unit.scheduler.core.strategies.stand import job_of, stand

WIDE: dict[str, Any] = {"max_staleness": 4, "async_ratio": 3.0}


def ordinals(bench: Bench) -> list[int]:
    return [command.ordinal for command in bench.opened()]


def taken(bench: Bench) -> list[str]:
    return [command.group_id for command in bench.found(AssignGroup, bench.commands)]


def test_sync_starts_one_batch_however_far_the_job_may_run_ahead() -> None:
    bench = stand(job_of(StrategyName.SLIME_SYNC, **WIDE))
    assert ordinals(bench) == [0, 1]
    bench.play(bench.group(0))
    assert ordinals(bench) == [0, 1]


def test_sync_starts_the_next_batch_after_the_weight_update() -> None:
    bench = stand(job_of(StrategyName.SLIME_SYNC, **WIDE))
    bench.play_open()
    bench.commit(1)
    assert ordinals(bench) == [0, 1]
    bench.synced(job_of(StrategyName.SLIME_SYNC), 0, 1)
    assert ordinals(bench) == [0, 1, 2, 3]


def test_sync_takes_groups_as_they_complete() -> None:
    bench = stand(job_of(StrategyName.SLIME_SYNC))
    bench.play(bench.group(1))
    bench.play(bench.group(0))
    assert taken(bench) == [gid(1), gid(0)]


def test_sync_with_over_sampling_aborts_the_surplus_and_queues_it_again() -> None:
    bench = stand(job_of(StrategyName.SLIME_SYNC, {"over_sampling": 2.0}, **WIDE))
    assert ordinals(bench) == [0, 1, 2, 3]
    bench.play(bench.group(3))
    bench.play(bench.group(1))
    bench.tick()
    dropped = [command.group_id for command in bench.found(DropGroup)]
    assert dropped == [gid(0), gid(2)]
    bench.commit(1)
    bench.synced(job_of(StrategyName.SLIME_SYNC), 0, 1)
    assert sorted(ordinals(bench)[4:])[2:] == [REPEAT_SPAN, REPEAT_SPAN + 2]


def test_async_keeps_its_pool_full_while_a_step_is_trained() -> None:
    bench = stand(
        job_of(StrategyName.SLIME_ASYNC, {"poll_s": 0.0}, max_staleness=9, async_ratio=2.0)
    )
    assert ordinals(bench) == [0, 1, 2, 3]
    bench.play(bench.group(0))
    assert ordinals(bench) == [0, 1, 2, 3, 4]


def test_async_stops_when_a_whole_pool_of_finished_groups_waits() -> None:
    bench = stand(
        job_of(StrategyName.SLIME_ASYNC, {"poll_s": 0.0}, max_staleness=9, async_ratio=2.0)
    )
    for ordinal in range(9):
        if gid(ordinal) in bench.job().groups:
            bench.play(bench.group(ordinal))
    # Two have positions, four wait, and what was open before goes on.
    assert max(ordinals(bench)) == 8


def test_async_tops_up_once_a_second() -> None:
    bench = stand(job_of(StrategyName.SLIME_ASYNC, max_staleness=9, async_ratio=2.0))
    bench.now += 0.4
    bench.play(bench.group(0))
    assert ordinals(bench) == [0, 1, 2, 3]
    bench.tick(0.7)
    assert ordinals(bench) == [0, 1, 2, 3, 4]


def test_the_pool_is_as_large_as_published_where_the_job_allows_more() -> None:
    job = job_of(
        StrategyName.SLIME_ASYNC, {"pool_per_engine": 1.0}, max_staleness=9, async_ratio=4.0
    )
    assert ordinals(stand(job, engines=2)) == [0, 1]


def test_async_takes_the_first_finished_whatever_its_age() -> None:
    bench = stand(
        job_of(StrategyName.SLIME_ASYNC, {"poll_s": 0.0}, max_staleness=9, async_ratio=2.0)
    )
    for ordinal in (2, 0, 1):
        bench.play(bench.group(ordinal))
    assert taken(bench) == [gid(2), gid(0)]
    bench.commit(1)
    assert taken(bench)[2:] == [gid(1)]


def lagging(strategy: StrategyName) -> Bench:
    """Group 0 has tokens of version 0; three steps of other groups are committed."""
    bench = stand(job_of(strategy, {"poll_s": 0.0}, max_staleness=9, async_ratio=2.0))
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
        bench.turn(rollout, 1, version=0)
    for step in (1, 2, 3):
        others = [g for g in bench.job().training_groups() if g.ordinal != 0 and g.is_unfinished]
        for group in others[:2]:
            bench.play(group, version=step - 1)
        bench.commit(step)
        bench.synced(job_of(strategy), 0, step)
    return bench


def test_bounded_drops_a_group_that_lags_more_than_two_and_does_its_task_again() -> None:
    bench = lagging(StrategyName.SLIME_BOUNDED)
    dropped = bench.found(DropGroup, bench.commands)
    assert [(c.group_id, c.reason) for c in dropped] == [(gid(0), DropReason.UNSALVAGEABLE)]
    assert REPEAT_SPAN in ordinals(bench)


def test_async_trains_the_same_group_late() -> None:
    bench = lagging(StrategyName.SLIME_ASYNC)
    assert bench.found(DropGroup, bench.commands) == []
    for rollout in bench.group(0).rollouts:
        bench.close(rollout, version=0)
    bench.grade(bench.group(0), version=0)
    late = [c for c in bench.found(AssignGroup, bench.commands) if c.group_id == gid(0)]
    assert [command.staleness for command in late] == [3]


def test_the_watchdog_gives_up_no_group_of_a_strategy_that_waits_for_none() -> None:
    """A promoted group of `venus` ends a wait by its drop; here whatever finishes fills the batch."""
    bench = stand(job_of(StrategyName.SLIME_BOUNDED, max_staleness=0))
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
    bench.tick(bench.job().plan.watchdog_s * 2)
    assert bench.found(DropGroup, bench.commands) == []
