"""Measures `Coordinator.step` over all shapes and prints a table, or JSON with `--json`."""

import argparse
import json
import sys

from benchmarks.step.measure import Bench, Figures
from benchmarks.step.shapes import SHAPES


def table(figures: Figures) -> str:
    """The figures of one shape for people."""
    head = (
        f"{figures.shape}: {figures.live_rollouts} live rollouts, {figures.engines} engines, "
        f"{figures.events} events\n"
        f"  {figures.events_per_s:,.0f} events/s, p50 {figures.p50_us:.0f} us, "
        f"p99 {figures.p99_us:.0f} us, max {figures.max_us / 1e3:.2f} ms, "
        f"{figures.bytes_per_rollout:.0f} bytes a rollout\n"
    )
    rows = [
        f"  {name:18} {t.count:8d} {t.mean_us:9.1f} {t.p50_us:9.1f} {t.p99_us:9.1f} "
        f"{t.max_us / 1e3:9.2f} {t.ramp_max_us / 1e3:9.2f}"
        for name, t in figures.types.items()
    ]
    columns = ("mean us", "p50 us", "p99 us", "max ms", "ramp ms")
    title = f"  {'event':18} {'count':>8} " + " ".join(f"{column:>9}" for column in columns)
    return "\n".join([head + title, *rows, ""])


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("--events", type=int, default=400_000, help="events measured of each shape")
    parser.add_argument("--shape", help="only shapes whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    measured = []
    for shape in SHAPES:
        if arguments.shape is not None and arguments.shape not in shape.name:
            continue
        bench = Bench(shape, arguments.seed)
        bench.fill()
        figures = bench.measure(arguments.events)
        measured.append(figures.as_json())
        if not arguments.json:
            sys.stdout.write(table(figures) + "\n")
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
