"""A small world and made-up records for tests of the scheduling benchmark."""

from dataclasses import replace
from typing import Any

from benchmarks.fixed import Regime, fixed
from benchmarks.schedule.cases import VENUS, Case, Cell, Entry
from benchmarks.schedule.records import Context, Record, Waits

SMALL: Regime = replace(fixed().regimes["low"], name="low", groups_per_batch=2, engines=2)
"""Two groups a batch on two engines."""

CONTEXT = Context(fixed="f" * 64, code="c" * 64, commit="abc", folder=None)


def case(entry: Entry = VENUS, seed: int = 1, tier: bool = False) -> Case:
    """Two batches of the small world."""
    return Case(Cell("low", tier), entry, seed, 2)


def record(name: str = VENUS.name, step_s: float = 100.0, seed: int = 1, **changes: Any) -> Record:
    """A run that went well on `mid` without host tier, bound 50 s."""
    strategy, _, variant = name.partition(" ")
    base = Record(
        regime="mid", has_host_tier=False, name=name, strategy=strategy,
        variant=variant.split(" ")[0], knobs={}, off=[], quality=None, seed=seed, batches=24,
        step_s=step_s, bound_s=50.0, ratio=step_s / 50.0, hit_rate=0.9, staleness={"0": 8, "2": 4},
        dropped={}, wasted_tokens=0, recomputed_tokens=0, sampled_tokens=10,
        wait_s=Waits(1.0, 2.0, 3.0, 4.0, 5.0), active_batch=5.0, busy_share=0.9,
        trainer_wait_s=1.0, moves=0, retractions=0, offloads=0, reloads=0, events=9,
        async_ratio=1.5, max_staleness=2,
    )  # fmt: skip
    return replace(base, **changes)
