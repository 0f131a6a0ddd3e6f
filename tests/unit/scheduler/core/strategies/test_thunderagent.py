"""ThunderAgent's router through the coordinator."""

from domain.commands import PlaceRollout, SuspendRollout
from domain.plan import StrategyName
from tests.unit.scheduler.core.bench import Bench, engine_id
from tests.unit.scheduler.core.strategies.stand import finished, job_of, sampled, stand

UPSTREAM, PAPER = StrategyName.THUNDERAGENT_UPSTREAM, StrategyName.THUNDERAGENT_PAPER


def agents(
    strategy: StrategyName = UPSTREAM, kv_tokens: int = 10_000, members: int = 2, engines: int = 1
) -> Bench:
    """One group whose members all wait for a place or have one."""
    job = job_of(strategy, group_size=members, groups_per_batch=1, async_ratio=1.0)
    bench = stand(job, engines, kv_tokens)
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
    return bench


def suspended(bench: Bench) -> list[str]:
    return [c.rollout_id for c in bench.found(SuspendRollout, bench.commands)]


def held(bench: Bench) -> list[str]:
    """Rollouts that wait off their engine."""
    return [r.rollout_id for r in bench.group(0).rollouts if r.is_suspended]


def test_a_new_program_is_admitted_where_it_fits_with_its_buffer() -> None:
    bench = agents(kv_tokens=250, members=3)
    assert [c.rollout_id for c in bench.placed()] == [
        rollout.rollout_id for rollout in bench.group(0).rollouts[:2]
    ]


def test_new_programs_go_to_the_engine_with_the_fewest_tokens() -> None:
    bench = agents(engines=2)
    assert [c.host_id for c in bench.placed()] == [engine_id(0), engine_id(1)]


def test_nobody_new_is_admitted_while_somebody_waits() -> None:
    bench = agents(kv_tokens=250, members=3)
    bench.close(bench.rollout(0, 0))
    assert len(bench.placed()) == 2, "there is room, but one waits until the next check"
    bench.tick(5.0)
    assert bench.placed()[-1].rollout_id == bench.rollout(0, 2).rollout_id


def test_engines_that_do_not_say_what_they_hold_are_never_full() -> None:
    assert len(agents(kv_tokens=0, members=8).placed()) == 8


def overflow(strategy: StrategyName, tokens: int = 4000) -> Bench:
    """Five programs that generate and hold 3,000 tokens more than the engine."""
    bench = agents(strategy, kv_tokens=17_500, members=5)
    for rollout in bench.group(0).rollouts:
        finished(bench, rollout, tokens)
    bench.tick(5.0)
    return bench


def test_upstream_pauses_all_five_when_their_turns_end() -> None:
    bench = overflow(UPSTREAM)
    assert suspended(bench) == [], "marks take effect when a turn ends"
    for rollout in bench.group(0).rollouts:
        sampled(bench, rollout, 4100)
        finished(bench, rollout, 4200)
    assert len(suspended(bench)) == 5


def test_the_paper_pauses_one() -> None:
    bench = overflow(PAPER)
    for rollout in bench.group(0).rollouts:
        sampled(bench, rollout, 4000)
        finished(bench, rollout, 4000)
    assert len(suspended(bench)) == 1


def test_a_shared_prefix_that_is_charged_once_pauses_nobody() -> None:
    bench = agents(PAPER, kv_tokens=17_500, members=5)
    for rollout in bench.group(0).rollouts:
        finished(bench, rollout, 4000, shared=3000)
    bench.tick(5.0)
    for rollout in bench.group(0).rollouts:
        finished(bench, rollout, 4000, shared=3000)
    assert suspended(bench) == []


def test_the_smallest_program_in_a_tool_is_paused_first_and_waits_at_its_turn() -> None:
    bench = agents(kv_tokens=5000, members=3)
    big, small, reasoning = bench.group(0).rollouts
    sampled(bench, big, 3000)
    sampled(bench, small, 1500)
    finished(bench, reasoning, 900)
    bench.tick(5.0)
    finished(bench, big, 3000)
    assert suspended(bench) == []
    finished(bench, small, 1500)
    assert suspended(bench) == [small.rollout_id]


def test_a_paused_program_goes_on_when_there_is_room_again() -> None:
    bench = overflow(PAPER)
    for rollout in bench.group(0).rollouts:
        sampled(bench, rollout, 4000)
        finished(bench, rollout, 4000)
    waiting = held(bench)
    other = next(r for r in bench.group(0).rollouts if r.rollout_id not in waiting)
    bench.close(other)
    assert held(bench) == waiting
    bench.tick(5.0)
    assert held(bench) == []
    assert [c.rollout_id for c in bench.found(PlaceRollout)] == waiting


def test_checks_come_every_five_seconds() -> None:
    bench = agents(kv_tokens=5000)
    bench.tick(1.0)
    for rollout in bench.group(0).rollouts:
        sampled(bench, rollout, 4000)
    bench.tick(4.0)
    finished(bench, bench.rollout(0, 0), 4000)
    assert suspended(bench) == []
    bench.tick(1.0)
    finished(bench, bench.rollout(0, 1), 4000)
    assert suspended(bench) == [bench.rollout(0, 1).rollout_id]


def test_after_half_an_hour_a_program_goes_on_whatever_the_room() -> None:
    bench = agents(kv_tokens=5000, members=2)
    first, second = bench.group(0).rollouts
    finished(bench, first, 4800)
    sampled(bench, second, 4700)
    bench.tick(5.0)
    finished(bench, second, 4700)
    assert held(bench) == [second.rollout_id]
    bench.tick(1800.0)
    assert held(bench) == [second.rollout_id]
    bench.tick(5.0)
    assert held(bench) == []
