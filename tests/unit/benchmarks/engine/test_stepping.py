"""Counted parts of the engine's benchmark: functions of their seeds."""

from collections import Counter
from dataclasses import replace
from typing import Final

from benchmarks.engine import hits, slots
from benchmarks.engine.models import LEAST
from benchmarks.engine.stepping import (
    PREFILL_TOKEN_S,
    STEP_S,
    Player,
    build,
    packed,
)
from benchmarks.engine.workload import PRESSURE, Rollout, Turn, draw
from kv.rules import PLAIN, RANKED

MODEL: Final = packed(LEAST)

FEW: Final = replace(
    PRESSURE, rollouts=24, group_size=2, turns=(2, 3), output_median=12.0, output_max=40
)


def test_the_clock_counts_the_work_of_the_core_and_steps_without_any() -> None:
    core, clock = build(MODEL, 2, 40, RANKED)
    rollout = Rollout(0, 0, (Turn(tuple(range(20)), 3), Turn((1, 2), 2)))
    player = Player(core, clock, [rollout], lambda rollout, turn: 10)
    player.play(1)
    counters = core.counters
    # Of the second turn 22 ids are known, and of those the last one sampled has no keys yet.
    assert counters.prefilled_tokens + counters.cached_tokens == 19 + 24
    assert counters.sampled_tokens == counters.steps == 5
    assert player.now == 3 + 10 + 2 - 1
    assert clock.idle_steps == player.now - 5
    assert clock() == STEP_S * player.now + PREFILL_TOKEN_S * counters.prefilled_tokens
    core.close()


def test_so_many_groups_live_at_once_and_all_are_played() -> None:
    rollouts = draw(FEW, 1)
    core, clock = build(MODEL, 4, 400, RANKED)
    live: Counter[int] = Counter()

    def gap(rollout: Rollout, turn: int) -> int:
        groups = {name.split(".")[1] for name in core.keys.table.tree.trajectories}
        live[len({int(name) // FEW.group_size for name in groups})] += 1
        return 1

    player = Player(core, clock, rollouts, gap)
    player.play(3)
    core.close()
    assert player.played == FEW.rollouts
    assert max(live) <= 3


def test_pressure_is_what_live_contexts_need_over_what_there_is() -> None:
    turn = Turn((0,) * 60, 4)
    rollouts = [Rollout(n, n // 2, (turn,)) for n in range(2 * hits.GROUPS_LIVE)]
    assert hits.device_pages(rollouts, 2.0) == 2 * hits.GROUPS_LIVE * 4 / 2.0


def test_a_run_under_pressure_is_a_function_of_its_seed() -> None:
    runs = [hits.run(MODEL, RANKED, 3.0, 1, shape=FEW) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0] != hits.run(MODEL, RANKED, 3.0, 2, shape=FEW)
    assert runs[0].recomputed_tokens > 0


def test_rules_play_the_same_workload_with_the_same_tools() -> None:
    gap, other = hits.gaps(1), hits.gaps(2)
    rollouts = draw(FEW, 1)
    drawn = [gap(one, turn) for one in rollouts for turn in range(2)]
    assert drawn == [gap(one, turn) for one in rollouts for turn in range(2)]
    assert drawn != [other(one, turn) for one in rollouts for turn in range(2)]
    assert len(set(drawn)) > 5
    ours = hits.run(MODEL, RANKED, 3.0, 1, shape=FEW)
    plain = hits.run(MODEL, PLAIN, 3.0, 1, shape=FEW)
    # What is prefilled is new, found, or computed again: both saw the same contexts.
    assert ours.cached_tokens != plain.cached_tokens
    assert ours.active * ours.steps == plain.active * plain.steps


def test_a_probe_that_finds_a_free_slot_waits_one_step() -> None:
    crowd = slots.Crowd(MODEL, slots.ROOMY, 1)
    probe = crowd.probe(1)
    crowd.core.close()
    assert (probe.busy, probe.slot_steps, probe.token_steps) == (0, 1, 1)


def test_a_probe_counts_the_steps_of_the_last_that_came_with_it() -> None:
    crowd = slots.Crowd(MODEL, slots.ROOMY, 1)
    crowd.settle()
    crowd.fill()
    probe = crowd.probe(slots.SLOTS + 1)
    crowd.core.close()
    assert probe.busy == slots.SLOTS
    assert 1 < probe.slot_steps <= probe.token_steps < slots.WAIT_STEPS_MAX
