"""What the command lines of the scheduling benchmark take: what a job may set, else an error says why."""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from benchmarks.fixed import Regime, fixed
from benchmarks.schedule.cases import Bounds, Case, Cell, main_entry
from domain import knobs
from domain.plan import Mechanism, StrategyName

CHOSEN: Final = "chosen"
"""Variant of an entry with numbers of a command line: none of the benchmark's own."""


def natural(text: str) -> int:
    """A whole number from 1 on: batches, processes."""
    return _whole(text, 1)


def whole(text: str) -> int:
    """A whole number from 0 on: m, and seeds, whose draws take no sign: -1 would be another name of 1."""
    return _whole(text, 0)


def ratio(text: str) -> float:
    """a of a run; infinite is all that the run has."""
    value = _number(text)
    if not value >= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 on")
    return value


def minutes(text: str) -> float:
    """Time that a call may take."""
    value = _number(text)
    if not value > 0.0:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return value


def pair(text: str) -> tuple[str, float]:
    """NAME=VALUE of a knob."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, _number(value)


def case_of(parser: argparse.ArgumentParser, words: Sequence[str] | None = None) -> Case:
    """The run that a command line names; what no job may set ends the process with its reason."""
    parser.add_argument("regime", choices=list(fixed().regimes))
    parser.add_argument("strategy", choices=[one.value for one in StrategyName])
    parser.add_argument("--tier", action="store_true", help="with a host tier")
    parser.add_argument("--seed", type=whole, default=1)
    parser.add_argument("--batches", type=natural, default=fixed().quick.batches)
    parser.add_argument("--off", nargs="*", default=[], choices=[one.value for one in Mechanism])
    parser.add_argument("--knob", nargs="*", type=pair, default=[], metavar="NAME=VALUE")
    parser.add_argument("-a", type=ratio, help="another a than the regime's")
    parser.add_argument("-m", type=whole, help="another m than the regime's")
    asked = parser.parse_args(words)
    strategy, regime = StrategyName(asked.strategy), fixed().regimes[asked.regime]
    fault = knob_fault(strategy, asked.knob) or _repeated("--off", asked.off)
    if fault is not None:
        parser.error(fault)
    entry = dataclasses.replace(
        main_entry(strategy, regime),
        knobs=tuple(sorted(asked.knob)),
        off=tuple(Mechanism(one) for one in asked.off),
    )
    if asked.a is not None or asked.m is not None:
        entry = dataclasses.replace(entry, bounds=_bounds(regime, asked.a, asked.m))
    if asked.knob or asked.a is not None or asked.m is not None:
        entry = dataclasses.replace(entry, variant=CHOSEN)
    return Case(Cell(regime.name, asked.tier), entry, asked.seed, asked.batches)


def knob_fault(strategy: StrategyName, given: Sequence[tuple[str, float]]) -> str | None:
    """Why a job could not set these numbers; None when it could."""
    for name, value in given:
        knob = knobs.find(strategy, name)
        if knob is None:
            known = ", ".join(one.name for one in knobs.KNOBS[strategy]) or "none"
            return f"{strategy.value} has no knob {name}; it has {known}"
        if not knob.accepts(value):
            kind = "a whole number" if knob.is_whole else "a number"
            return f"knob {name} is {kind} from {knob.low:g} to {knob.high:g}, not {value:g}"
    falling = knobs.contradictions(strategy, dict(given))
    if falling:
        (lower, low), (upper, high) = falling[0]
        return f"knob {lower} {low:g} is above {upper} {high:g}"
    return _repeated("--knob", [name for name, _ in given])


def _bounds(regime: Regime, a: float | None, m: int | None) -> Bounds:
    return Bounds(
        regime.async_ratio if a is None else a,
        regime.max_staleness if m is None else m,
    )


def _repeated(option: str, names: Sequence[str]) -> str | None:
    twice = next((name for name in names if names.count(name) > 1), None)
    return None if twice is None else f"{option} names {twice} twice"


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from {least} on")
    return int(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text} is no number")
    return value
