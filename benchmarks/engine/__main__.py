"""Measures the embedded engine: tables, or JSON. Medians of repetitions, least and most beside them."""

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.engine import hits, moves, rate, report, slots, vllm_side
from benchmarks.engine.models import MODELS
from benchmarks.engine.vllm_side import NotRun


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement: figures as dataclasses, and how they look."""

    measure: Callable[[argparse.Namespace, Path], Sequence[Any]]
    table: Callable[[Any], str]


def measure_rate(arguments: argparse.Namespace, folder: Path) -> Sequence[Any]:
    """Beside a batched loop."""
    if importlib.util.find_spec("transformers") is None:
        raise NotRun("transformers is not installed (the extra `reference`)")
    return [
        rate.measure(
            name, MODELS[name], folder / f"rate-{name}", rounds=arguments.rounds, answers=answers
        )
        for name in arguments.models
        for answers in rate.SHAPES
    ]


def measure_hits(arguments: argparse.Namespace, folder: Path) -> Sequence[Any]:
    """Residency under pressure."""
    del folder
    return hits.measure(tuple(range(1, arguments.seeds + 1)))


def measure_slots(arguments: argparse.Namespace, folder: Path) -> Sequence[Any]:
    """Waits for a slot."""
    del folder
    return slots.measure(tuple(range(1, arguments.seeds + 1)))


def measure_moves(arguments: argparse.Namespace, folder: Path) -> Sequence[Any]:
    """Migration beside prefill."""
    return [
        one
        for name in arguments.models
        for one in moves.measure(
            name, MODELS[name], folder / f"moves-{name}", repeats=arguments.rounds
        )
    ]


def measure_vllm(arguments: argparse.Namespace, folder: Path) -> Sequence[Any]:
    """Beside vLLM."""
    return vllm_side.measure(folder / "vllm", arguments.rounds)


PARTS: Final = {
    "rate": Part(measure_rate, report.rate_table),
    "hits": Part(measure_hits, report.hit_table),
    "slots": Part(measure_slots, report.slot_table),
    "moves": Part(measure_moves, report.move_table),
    "vllm": Part(measure_vllm, report.vllm_table),
}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--rounds", type=int, default=rate.ROUNDS, help="repetitions of timed parts"
    )
    parser.add_argument("--seeds", type=int, default=len(hits.SEEDS), help="of counted parts")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    measured: dict[str, object] = {}
    for name in arguments.parts:
        with tempfile.TemporaryDirectory() as folder:
            record, text = measure(PARTS[name], arguments, Path(folder))
        measured[name] = record
        if not arguments.json:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(json.dumps(measured, indent=1) + "\n")


def measure(part: Part, arguments: argparse.Namespace, folder: Path) -> tuple[object, str]:
    """One part as plain data and as a table; why it was not run, if so."""
    try:
        figures = part.measure(arguments, folder)
    except NotRun as reason:
        return {"not_run": str(reason)}, f"Not run: {reason}\n"
    return [asdict(one) for one in figures], part.table(figures)


if __name__ == "__main__":
    main()
