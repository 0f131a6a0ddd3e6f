"""The embedded engine on one core: its rate, its hit rate under pressure, its slots.

The rate is of processor time, in pairs of runs one after the other; the other two are counted on the clock
of the engine's own work and are the same on every machine.
"""

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from benchmarks.engine import hits, moves, rate, report, slots
from benchmarks.engine.models import LEAST, MODELS
from benchmarks.engine.stepping import packed
from tests.support import requires

RATIO_LEAST: Final = 2.0
"""Over a batched loop that keeps its cache, whichever kind of cache is faster."""

ROOM: Final = 0.9
"""Of the median on a machine that others use: caches are shared too, and the loop's large copies suffer
otherwise than the engine's small ones. One round at least must reach the whole."""

ROUNDS: Final = 3

HIT_RATE_LEAST: Final = 0.90
LRU_GAP: Final = 0.05
"""What the others stay behind, by the medians: also the same queue over least recently used pages."""

SLOT_STEPS_MAX: Final = 2

pytestmark = pytest.mark.accept


@requires("reference")
@pytest.mark.parametrize("name", sorted(MODELS) if os.environ.get("FULL") else ["small"])
def test_the_engine_gives_twice_the_tokens_of_a_batched_loop(name: str, tmp_path: Path) -> None:
    figures = rate.measure(name, MODELS[name], tmp_path, rounds=ROUNDS)
    sys.stdout.write("\n" + report.rate_table([figures]))
    assert figures.equal_turns > 0.5, "the two sides do not run the same model"
    assert figures.ratio.most >= RATIO_LEAST
    assert figures.ratio.median >= RATIO_LEAST * ROOM


def test_under_pressure_nine_of_ten_known_tokens_are_found() -> None:
    figures = hits.measure()
    sys.stdout.write("\n" + report.hit_table(figures))
    rates = {(one.rules, one.pressure): one.hit_rate for one in figures}
    for pressure in hits.PRESSURES:
        aware = rates[hits.AWARE, pressure]
        assert aware.least >= HIT_RATE_LEAST
        for rules in hits.RULES:
            behind = aware.median - rates[rules, pressure].median
            assert rules == hits.AWARE or behind >= LRU_GAP


@pytest.mark.parametrize("case", slots.CASES, ids=lambda case: case.name)
def test_high_ranked_rollouts_have_slots_and_pages_within_two_steps(case: slots.Case) -> None:
    model = packed(LEAST)
    probes = [one for seed in slots.SEEDS for one in slots.run(model, case, seed)]
    figures = slots.figures(case, probes)
    sys.stdout.write("\n" + report.slot_table([figures]))
    assert len(probes) == slots.PROBES * len(slots.SEEDS)
    if case.pages == slots.ROOMY:
        assert {one.busy for one in probes} == {slots.SLOTS}
    else:
        assert figures.busy.median < slots.SLOTS
    assert max(one.token_steps for one in probes) <= SLOT_STEPS_MAX


def test_pages_arrive_by_both_ways_and_are_used_at_every_length(tmp_path: Path) -> None:
    figures = moves.measure("small", MODELS["small"], tmp_path, repeats=2)
    sys.stdout.write("\n" + report.move_table(figures))
    assert [one.context for one in figures] == list(moves.CONTEXTS)
    longest = figures[-1]
    assert longest.memory_gain.median > 1.0, "a long context is computed faster than it is moved"
