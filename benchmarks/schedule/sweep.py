"""Each baseline's own knobs, tuned as its user would: `python -m benchmarks.schedule.sweep`.

On `mid` without host tier, within its a and m: one knob at a time, then all values together that helped,
each setting by the median of its seeds. What was tried is written to `tuned.json`, which the benchmark
reads; the winner may be the default.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.fixed import fixed
from benchmarks.schedule.arguments import natural, whole
from benchmarks.schedule.cases import COMPARED, TUNED, TUNED_FILE, Case, Cell, Entry
from benchmarks.schedule.cells import Effort, run_cases
from benchmarks.schedule.records import ROOT, Context, Record, read_lines
from domain import knobs
from domain.plan import StrategyName

CELL: Final = Cell("mid", False)

GAIN_MIN: Final = 0.01
"""A value that gains less is chance: the published one stays."""

Knobs = tuple[tuple[str, float], ...]

_POOL: Final = {"pool_per_engine": (1.0, 2.0), "poll_s": (0.0,)}

_PROGRAMS: Final = {
    **_POOL,
    "interval_s": (1.0, 2.0, 10.0),
    "acting_weight": (0.5, 0.0),
    "buffer_tokens": (1_000.0, 4_000.0),
    "decay": (0.0, 1.0),
    "counts_marks": (0.0, 1.0),
    "shares_prefix": (0.0, 1.0),
}

VALUES: Final[Mapping[StrategyName, Mapping[str, Sequence[float]]]] = {
    StrategyName.SLIME_SYNC: {"over_sampling": (1.25, 1.5)},
    StrategyName.SLIME_BOUNDED: _POOL,
    StrategyName.ROLLFLASH: {
        "async_ratio": (0.0, 2.0),
        "env_groups": (4.0, 6.0, 12.0),
        "rollart": (1.0,),
    },
    StrategyName.THUNDERAGENT_PAPER: _PROGRAMS,
    StrategyName.THUNDERAGENT_UPSTREAM: _PROGRAMS,
    StrategyName.AIMD: {
        "in_flight_first": (32.0, 64.0),
        "grow_below": (0.8,),
        "soft_usage": (0.9,),
        "hard_usage": (0.95,),
        "target_usage": (0.8,),
        "growth": (1.1, 1.5),
        "cancels": (0.0,),
    },
    StrategyName.TTL: {**_POOL, "ttl_max_s": (30.0, 120.0, 3_600.0), "ttl_unknown_s": (10.0,)},
    StrategyName.LONGEST: {"length_cap": (20_000.0, 50_000.0)},
}
"""What a user would try beside the defaults: around them, and the sizes that fit these engines."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting of a strategy, seconds a step by seed."""

    knobs: Knobs
    step_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """What settings are compared by."""
        return median(self.step_s)


def singles(strategy: StrategyName) -> list[Knobs]:
    """The defaults, then one knob at a time."""
    found: list[Knobs] = [()]
    for name, values in VALUES[strategy].items():
        knob = knobs.find(strategy, name)
        assert knob is not None, f"{strategy} declares no knob {name}"
        for value in values:
            assert knob.accepts(value), f"{strategy} {name}={value}"
            if value != knob.default:
                found.append(((name, value),))
    return found


def together(tried: Sequence[Tried]) -> Knobs:
    """Of each knob the value that helped most, where one did."""
    base = next(one.median_s for one in tried if one.knobs == ())
    best: dict[str, Tried] = {}
    for one in tried:
        if len(one.knobs) != 1 or one.median_s > (1.0 - GAIN_MIN) * base:
            continue
        name = one.knobs[0][0]
        if name not in best or one.median_s < best[name].median_s:
            best[name] = one
    return tuple(best[name].knobs[0] for name in sorted(best))


def winner(tried: Sequence[Tried]) -> Knobs:
    """The fastest setting; the defaults unless another gains more than chance."""
    base = next(one for one in tried if one.knobs == ())
    fastest = min(tried, key=lambda one: (one.median_s, len(one.knobs), one.knobs))
    return fastest.knobs if fastest.median_s <= (1.0 - GAIN_MIN) * base.median_s else ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """Where and how often settings are run."""

    file: Path
    context: Context
    seeds: tuple[int, ...]
    batches: int
    processes: int

    def measure(self, settings: Mapping[StrategyName, Sequence[Knobs]]) -> None:
        """Run what the file lacks."""
        run_cases(self._cases(settings), self.file, self.context, Effort(self.processes))

    def results(self, settings: Mapping[StrategyName, Sequence[Knobs]]) -> list[tuple[str, Tried]]:
        """Finished settings; one whose run failed on a seed has the other's figure."""
        known: dict[str, Record] = {one.key: one for one in read_lines(self.file)}
        found = []
        for strategy, tried in settings.items():
            for setting in tried:
                cases = self._cases({strategy: [setting]})
                keys = [case.key(self.context.parts) for case in cases]
                steps = tuple(known[key].step_s for key in keys if key in known)
                if steps:
                    found.append((strategy.value, Tried(setting, steps)))
        return found

    def _cases(self, settings: Mapping[StrategyName, Sequence[Knobs]]) -> list[Case]:
        return [
            Case(CELL, Entry(strategy, TUNED, setting), seed, self.batches)
            for seed in self.seeds
            for strategy, tried in settings.items()
            for setting in tried
        ]


def by_strategy(results: Sequence[tuple[str, Tried]]) -> dict[StrategyName, list[Tried]]:
    """Settings of each strategy in the order in which they were tried."""
    found: dict[StrategyName, list[Tried]] = {}
    for name, tried in results:
        found.setdefault(StrategyName(name), []).append(tried)
    return found


def run_sweep(sweep: Sweep, strategies: Sequence[StrategyName]) -> dict[StrategyName, list[Tried]]:
    """One knob at a time, then together."""
    settings: dict[StrategyName, list[Knobs]] = {one: singles(one) for one in strategies}
    sweep.measure(settings)
    for strategy, tried in by_strategy(sweep.results(settings)).items():
        joined = together(tried)
        if len(joined) > 1:
            settings[strategy].append(joined)
    sweep.measure(settings)
    return by_strategy(sweep.results(settings))


def as_json(sweep: Sweep, results: Mapping[StrategyName, Sequence[Tried]]) -> str:
    """The committed file."""
    context = sweep.context
    content = {
        "what": "simulated seconds a step of each setting, by seed; winners are the tuned baselines",
        "cell": asdict(CELL),
        "batches": sweep.batches,
        "seeds": sweep.seeds,
        "traces": "recorded" if context.folder else "fitted generator",
        "fixed": context.fixed,
        "code": context.code,
        "commit": context.commit,
        "tuned": {name.value: dict(winner(tried)) for name, tried in results.items()},
        "tried": {
            name.value: [
                {"knobs": dict(one.knobs), "step_s": [round(step, 1) for step in one.step_s]}
                for one in tried
            ]
            for name, tried in results.items()
        },
    }
    return json.dumps(content, indent=1) + "\n"


def main() -> None:
    """Sweep and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=whole, default=list(fixed().quick.seeds))
    parser.add_argument("--batches", type=natural, default=fixed().quick.batches)
    parser.add_argument("--processes", type=natural, default=os.cpu_count() or 1)
    parser.add_argument("--file", type=Path, default=ROOT / "out" / "sweep.jsonl")
    asked = parser.parse_args()
    sweep = Sweep(asked.file, Context(), tuple(asked.seeds), asked.batches, asked.processes)
    results = run_sweep(sweep, COMPARED)
    TUNED_FILE.write_text(as_json(sweep, results))
    for name, tried in results.items():
        base, best = tried[0].median_s, min(one.median_s for one in tried)
        print(f"{name.value}: {dict(winner(tried)) or 'the defaults'}, {best / base:.3f} of them")


if __name__ == "__main__":
    main()
