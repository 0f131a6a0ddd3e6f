"""prime-rl's cap through the coordinator."""

from domain.commands import EndTry, SuspendRollout
from domain.plan import StrategyName
from scheduler.core.records import RolloutRecord
from tests.unit.scheduler.core.bench import Bench
from tests.unit.scheduler.core.strategies.stand import finished, job_of, sampled, stand

FLOOR = {"in_flight_min": 1.0}


def capped(first: float, kv_tokens: int = 1000, cancels: float = 1.0) -> Bench:
    """Groups of four under a first cap."""
    knobs = {**FLOOR, "in_flight_first": first, "cancels": cancels}
    job = job_of(
        StrategyName.AIMD, knobs, group_size=4, groups_per_batch=2, async_ratio=9.0, max_staleness=9
    )
    return stand(job, kv_tokens=kv_tokens)


def begin(bench: Bench) -> None:
    for group in list(bench.job().training_groups()):
        for rollout in group.rollouts:
            if rollout.sandbox.value == "asked":
                bench.ready(rollout)


def test_groups_open_while_fewer_rollouts_are_open_than_the_cap() -> None:
    assert [len(capped(cap).opened()) for cap in (4.0, 5.0, 8.0)] == [1, 2, 2]


def test_rollouts_of_a_group_start_one_by_one_up_to_the_cap() -> None:
    bench = capped(5.0)
    begin(bench)
    assert len(bench.placed()) == 5
    bench.close(bench.rollout(0, 0))
    assert bench.placed()[-1].rollout_id == bench.rollout(1, 1).rollout_id


def test_the_first_cap_is_what_the_engines_hold_in_longest_contexts() -> None:
    knobs = {**FLOOR, "context_tokens": 250.0}
    job = job_of(StrategyName.AIMD, knobs, group_size=4, async_ratio=9.0, max_staleness=9)
    bench = stand(job, engines=2, kv_tokens=1000)
    begin(bench)
    assert len(bench.placed()) == 8


def test_without_what_engines_hold_only_the_ceiling_counts() -> None:
    job = job_of(StrategyName.AIMD, {**FLOOR, "in_flight_max": 6.0}, group_size=4, async_ratio=9.0)
    bench = stand(job)
    begin(bench)
    assert len(bench.placed()) == 6


def full(cancels: float) -> Bench:
    """Four rollouts in turns that fill the engine."""
    bench = capped(4.0, cancels=cancels)
    begin(bench)
    for rollout in bench.group(0).rollouts:
        finished(bench, rollout, 240)
    bench.tick(5.0)
    return bench


def test_a_hard_trim_cancels_the_youngest_which_begin_anew() -> None:
    bench = full(cancels=1.0)
    ended = bench.found(EndTry)
    assert [(c.rollout_id, c.next_try, c.counts) for c in ended] == [
        (bench.rollout(0, index).rollout_id, 2, False) for index in (3, 2)
    ]
    assert bench.job().failed_tries == 0
    begin(bench)
    assert sum(1 for r in bench.group(0).rollouts if r.host is not None) == 2
    bench.close(bench.rollout(0, 0))
    assert bench.rollout(0, 2).host is not None


def test_as_a_knob_the_youngest_are_suspended_at_their_turn_and_go_on() -> None:
    bench = full(cancels=0.0)
    assert bench.found(EndTry, bench.commands) == []
    finished(bench, bench.rollout(0, 3), 250)
    assert [c.rollout_id for c in bench.found(SuspendRollout)] == [bench.rollout(0, 3).rollout_id]
    bench.close(bench.rollout(0, 0))
    bench.close(bench.rollout(0, 1))
    bench.tick(5.0)
    assert not bench.rollout(0, 3).is_suspended
    assert bench.rollout(0, 3).turn == 2, "what it has done is kept"


def test_a_tool_holds_no_kv_in_the_eyes_of_a_poll() -> None:
    bench = capped(4.0)
    begin(bench)
    for rollout in bench.group(0).rollouts:
        sampled(bench, rollout, 240)
    bench.tick(5.0)
    assert bench.found(EndTry, bench.commands) == []


def test_finished_rollouts_let_a_binding_cap_grow() -> None:
    bench = capped(4.0)
    begin(bench)
    bench.tick(5.0)
    for _ in range(5):
        oldest = in_flight(bench)[0]
        finished(bench, oldest, 20)
        bench.close(oldest)
        begin(bench)
    assert len(in_flight(bench)) == 5, "five quarters of a turnover: 4 x 1.25^1.25 is 5.3"


def in_flight(bench: Bench) -> list[RolloutRecord]:
    groups = bench.job().training_groups()
    return [rollout for group in groups for rollout in group.rollouts if rollout.host is not None]
