"""Lives of sandboxes: as recorded, and as generated."""

import json
from dataclasses import asdict
from random import Random

from simulation.sandboxes.demand import MB, MemoryTrace, TraceSource, summarize
from simulation.sandboxes.fit import fit
from simulation.sandboxes.generator import FITTED_FILE, demand_from, fitted_demand
from simulation.sandboxes.traces import memory_of

NEAR = 0.10

ROW = {
    "sandbox": {
        "start_offset": -1.0, "dt": 2.0, "rss_mb": [10.0, 200.0, 300.0], "cpu_pct": [100.0, 0.0, 50.0],
    },
    "turns": [
        {"gen_seconds": 2.0, "tool_seconds": 1.0}, {"gen_seconds": 1.0, "tool_seconds": None},
    ],
}  # fmt: skip


def test_a_recorded_sandbox_is_put_on_whole_seconds() -> None:
    trace = memory_of(ROW)
    assert [value // MB for value in trace.rss_bytes] == [10, 10, 200, 200, 300, 300]
    assert trace.cores == (1.0, 1.0, 0.0, 0.0, 0.5, 0.5)


def test_turns_and_generation_follow_the_seconds_of_the_turns() -> None:
    # The first request comes one second after the first sample: 2 s of generation, 1 s of tool, 1 s.
    trace = memory_of(ROW)
    assert trace.turns == (0, 0, 0, 0, 1, 1)
    assert trace.in_generation == (False, True, True, False, True, False)


def test_generated_lives_look_like_recorded_ones() -> None:
    wanted = json.loads(FITTED_FILE.read_text())["summary"]
    chance = Random(1)
    got = asdict(summarize(fitted_demand().draw(chance) for _ in range(1_500)))
    apart = {
        name: (value, got[name])
        for name, value in wanted.items()
        if abs(got[name] - value) > NEAR * value
    }
    assert apart == {}


def test_a_fit_keeps_no_row_and_gives_lives_again() -> None:
    chance = Random(2)
    lives = [fitted_demand().draw(chance) for _ in range(60)]
    fitted = fit(lives, sample=40)
    assert set(fitted) == {
        "kinds", "correlation", "cores", "generation_s", "tool_s", "persistence", "hold", "start",
        "summary",
    }  # fmt: skip
    assert sum(kind["share"] for kind in fitted["kinds"]) > 0.99
    assert len(demand_from(fitted).draw(Random(1))) > 0


def test_the_same_seed_draws_the_same_lives() -> None:
    assert fitted_demand().draw(Random(7)) == fitted_demand().draw(Random(7))


def test_recorded_lives_are_drawn_from_all_of_them() -> None:
    lives = [MemoryTrace((size,), (0.0,), (0,), (True,)) for size in range(3)]
    chance = Random(1)
    drawn = {TraceSource(lives).draw(chance).rss_bytes[0] for _ in range(50)}
    assert drawn == {0, 1, 2}
