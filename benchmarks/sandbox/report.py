"""The readable report of the sandbox benchmark, and the same for machines."""

import json
from dataclasses import asdict

from benchmarks.markdown import checks_section, grid
from benchmarks.sandbox.cells import CellRecord
from benchmarks.sandbox.checks import all_checks
from benchmarks.sandbox.fixed import fixed
from benchmarks.sandbox.results import Results, bill_of, ceiling_of, saving_over
from benchmarks.schedule.records import commit_of_tree
from sandboxes.core.names import GIB
from simulation.sandboxes.demand import MB


def markdown(results: Results) -> str:
    """The whole page."""
    node, run = fixed().node, fixed().run
    head = "\n".join(
        [
            "# Sandbox pool benchmark",
            "",
            (
                "Figures of nodes are simulated, with the real core (`sandboxes/core`) deciding; "
                "placement times are measured. `docs/benchmarks.md` says how to read this page."
            ),
            "",
            f"- commit {commit_of_tree()}; fixed numbers sha256 `{fixed().sha256}`",
            (
                f"- demand: {results.source}; one node of {node.cores} cores and "
                f"{node.memory_bytes / 1e9:.0f} GB, packing {node.packing}"
            ),
            (
                f"- {run.seconds} s, measured from {run.measured_from_s} s, seeds "
                f"{', '.join(map(str, run.seeds))}"
            ),
        ]
    )
    parts = [
        head,
        "## What it must show\n\n" + checks_section(all_checks(results)),
        "## The node\n\n" + _cells(results),
        "## Baselines on the same node\n\n" + _baselines(results),
        "## Dollars for a sandbox-hour\n\n" + _bills(results),
        "## One placement\n\n" + _placement(results),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _cells(results: Results) -> str:
    said = (
        "Sandboxes at once and megabytes of one (overhead and its part of shared pages included): means, "
        "median of seeds. Ceiling: a node filled to the packing limit without any reserve. Fullest: of "
        "any second. Slowed: share of time with more cores wanted than there are. The storm loses "
        f"{fixed().storm.lost_share:.0%} of the node's memory in the middle; its savings mean nothing.\n\n"
    )
    head = (
        "cell", "MB a guest", "sandboxes", "MB used", "node filled", "fullest", "saving 2 GiB", "ceiling",
        "saving 1 GiB", "ceiling", "over `e2b-oss`", "binds", "cores busy", "slowed", "overflow, strict",
    )  # fmt: skip
    return said + grid(head, (_row(results, one) for one in results.cells.values()))


def _row(results: Results, record: CellRecord) -> tuple[str, ...]:
    def over(name: str, declared: int) -> str:
        other = results.baseline(name, declared)
        return "" if other is None else f"{saving_over(record, other):.4f}"

    return (
        record.cell.name,
        str(record.cell.overhead_mb),
        f"{record.sandboxes:.0f}",
        f"{record.used_bytes / MB:.1f}",
        f"{record.filled:.3f}",
        f"{record.fullest:.3f}",
        over("e2b-declared", 2 * GIB),
        f"{ceiling_of(record, 2 * GIB):.4f}",
        over("e2b-declared", GIB),
        f"{ceiling_of(record, GIB):.4f}",
        over("e2b-oss", 2 * GIB),
        record.binding,
        f"{record.busy:.2f}",
        f"{record.slowed:.3f}",
        f"{record.overflow:.1e}, {record.overflow_lived:.1e}",
    )


def _baselines(results: Results) -> str:
    rows = [
        (
            one.name,
            f"{one.ceiling_bytes / GIB:g}",
            f"{one.tally.sandboxes:.0f}",
            str(one.tally.rollouts_ended),
            str(one.tally.killed_by_ceiling),
            str(one.tally.overflow_s),
        )
        for one in results.baselines
    ]
    head = (
        "rule",
        "GiB declared",
        "sandboxes",
        "ended",
        "killed by the ceiling",
        "seconds above RAM",
    )
    return grid(head, rows)


def _bills(results: Results) -> str:
    prices = fixed().prices
    said = (
        f"{prices.vcpu_s} dollars a vCPU-second, {prices.gib_s} a GiB-second ({prices.source}, "
        f"{prices.date}), "
        f"{fixed().declared.vcpus} vCPU and 2 GiB declared. Used: the same rates on CPU seconds and bytes in "
        "use, and on the room kept free beside them; shared pages once a node in the last column.\n\n"
    )
    rows = []
    for record in results.cells.values():
        told = bill_of(record, 2 * GIB)
        hours = sum(one.sandbox_s for one in record.tallies) / 3600
        row = (told.declared / hours, told.used / hours, told.shared / hours)
        rows.append(
            (record.cell.name, *(f"{value:.5f}" for value in row), f"{1 - row[2] / row[0]:.3f}")
        )
    return said + grid(("cell", "declared", "used", "used and shared", "saving"), rows)


def _placement(results: Results) -> str:
    rows = [
        (
            f"{one.filled:.2f}", f"{one.p50_us:.1f}", f"{one.mean_us:.1f}", f"{one.p99_us:.1f}",
            f"{one.max_us:.0f}", str(one.split), str(one.refused),
            ", ".join(f"{x:.1f}" for x in one.rounds_p99_us),
        )
        for one in results.placement
    ]  # fmt: skip
    said = (
        "Microseconds of processor time; of each pool the round with the least p99, all of them in the "
        "last column. What is left of a fuller pool is in pieces, so that groups split.\n\n"
    )
    head = ("pool filled", "median", "mean", "p99", "slowest", "split", "refused", "p99 by round")
    return said + grid(head, rows)


def as_json(results: Results) -> str:
    """Every record."""
    found = {
        "fixed": fixed().sha256,
        "commit": commit_of_tree(),
        "demand": results.source,
        "nodes_simulated": True,
        "checks": [{**asdict(one), "verdict": one.verdict} for one in all_checks(results)],
        "cells": [record.as_json() for record in results.cells.values()],
        "baselines": [asdict(one) for one in results.baselines],
        "placement": [asdict(one) for one in results.placement],
    }
    return json.dumps(found, indent=1) + "\n"
