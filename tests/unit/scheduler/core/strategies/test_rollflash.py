"""ROLL's episode queues through the coordinator."""

from domain.commands import AssignGroup, DropGroup, EndTry
from domain.ids import REPEAT_SPAN
from domain.plan import StrategyName
from tests.unit.scheduler.core.bench import Bench, engine_id, gid
from tests.unit.scheduler.core.strategies.stand import finished, job_of, stand

WIDE = {"max_staleness": 4, "async_ratio": 9.0, "groups_per_batch": 2}


def flash(engines: int = 1, rollart: float = 0.0, **changes: float) -> Bench:
    job = job_of(StrategyName.ROLLFLASH, {"rollart": rollart}, **{**WIDE, **changes})
    return stand(job, engines)


def ordinals(bench: Bench) -> list[int]:
    return [command.ordinal for command in bench.opened()]


def taken(bench: Bench) -> list[str]:
    return [command.group_id for command in bench.found(AssignGroup, bench.commands)]


def step(bench: Bench, number: int) -> None:
    bench.commit(number)
    bench.synced(job_of(StrategyName.ROLLFLASH), 0, number)


def test_each_queue_begins_with_two_episodes_at_ratio_one() -> None:
    assert ordinals(flash()) == [0, 1, 2, 3]


def test_a_ratio_of_zero_is_synchronous() -> None:
    job = job_of(StrategyName.ROLLFLASH, {"async_ratio": 0.0}, **WIDE)
    assert ordinals(stand(job)) == [0, 1]


def test_the_ratio_is_never_above_the_jobs_staleness() -> None:
    assert ordinals(flash(max_staleness=0, async_ratio=1.0)) == [0, 1]


def test_the_second_episode_of_a_queue_waits_for_its_first() -> None:
    bench = flash()
    bench.play(bench.group(2))
    assert taken(bench) == [], "group 2 is the second episode of queue 0"
    bench.play(bench.group(0))
    assert taken(bench) == [gid(0)]


def test_a_batch_takes_one_of_each_queue_before_a_second_of_any() -> None:
    bench = flash()
    bench.play(bench.group(0))
    bench.play(bench.group(2))
    assert taken(bench) == [gid(0)]
    bench.play(bench.group(1))
    assert taken(bench) == [gid(0), gid(1)]


def test_a_step_opens_one_more_episode_of_each_queue() -> None:
    bench = flash()
    bench.play(bench.group(0))
    bench.play(bench.group(1))
    step(bench, 1)
    assert ordinals(bench)[4:] == [4, 5]


def test_nothing_opens_before_the_weight_update_of_the_step() -> None:
    bench = flash()
    bench.play(bench.group(0))
    bench.play(bench.group(1))
    bench.commit(1)
    assert ordinals(bench) == [0, 1, 2, 3]


def test_expired_episodes_are_dropped_and_their_tasks_done_again() -> None:
    """Three queues for batches of one: two steps pass while the first queue gives nothing."""
    knobs = {"env_groups": 3.0}
    wide = {"max_staleness": 9, "async_ratio": 9.0, "groups_per_batch": 1}
    bench = stand(job_of(StrategyName.ROLLFLASH, knobs, **wide))
    assert ordinals(bench) == [0, 1, 2, 3, 4, 5]
    bench.play(bench.group(1))
    step(bench, 1)
    assert bench.found(DropGroup, bench.commands) == []
    bench.play(bench.group(2), version=1)
    step(bench, 2)
    dropped = [command.group_id for command in bench.found(DropGroup, bench.commands)]
    assert dropped == [gid(0), gid(3), gid(4), gid(5)], "all that was created at step 0"
    again = [ordinal for ordinal in ordinals(bench) if ordinal >= REPEAT_SPAN]
    assert again == [REPEAT_SPAN + ordinal for ordinal in (0, 3, 4)], "one for each queue"


def test_a_flat_group_is_replaced_in_the_same_step() -> None:
    bench = flash()
    bench.play(bench.group(0), flat=True)
    assert ordinals(bench)[4:] == [4]


def test_a_queue_runs_as_many_rollouts_as_it_has_environments() -> None:
    bench = flash(groups_per_batch=1)
    for ordinal in (0, 1):
        for rollout in bench.group(ordinal).rollouts:
            bench.ready(rollout)
    assert {c.rollout_id for c in bench.placed()} == {r.rollout_id for r in bench.group(0).rollouts}
    bench.close(bench.rollout(0, 0))
    assert bench.placed()[-1].rollout_id in {r.rollout_id for r in bench.group(1).rollouts}


def test_an_environment_keeps_the_engine_with_the_fewest_when_it_began() -> None:
    bench = flash(engines=2, groups_per_batch=1)
    for ordinal in (0, 1):
        for rollout in bench.group(ordinal).rollouts:
            bench.ready(rollout)
    assert [c.host_id for c in bench.placed()] == [engine_id(0), engine_id(1)]
    bench.close(bench.rollout(0, 1))
    assert bench.placed()[-1].host_id == engine_id(1)


def test_rollart_begins_a_trajectory_anew_that_is_too_old_at_its_turn() -> None:
    bench = flash(rollart=1.0)
    for rollout in bench.group(2).rollouts:
        bench.ready(rollout)
        finished(bench, rollout, 10, version=0)
    bench.play(bench.group(0))
    bench.play(bench.group(1))
    step(bench, 1)
    finished(bench, bench.rollout(2), 20, version=0)
    assert bench.found(EndTry) == [], "one version is within alpha"
    bench.job().committed = 2
    finished(bench, bench.rollout(2), 30, version=0)
    ended = bench.found(EndTry)
    assert [(c.rollout_id, c.next_try, c.counts) for c in ended] == [
        (bench.rollout(2).rollout_id, 2, False)
    ]
