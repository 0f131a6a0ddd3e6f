"""The page of the density run."""

from typing import Final

import psutil

from benchmarks.density.run import Density
from benchmarks.density.verdicts import CONFIDENCE, Comparison, Place
from benchmarks.markdown import grid
from benchmarks.sandbox.fixed import fixed
from sandboxes.core.cost import Usage, bill
from sandboxes.core.names import GIB

DECLARED_BYTES: Final = 256 * 1024**2
"""Of the `shell` environment."""

DECLARED_VCPU: Final = 1.0

SHOWN: Final = 10


def markdown(found: Comparison, alone: Density, full: Density) -> str:
    """What differs, and what a scored rollout costs at both densities."""
    lines = [
        ("pairs", str(found.pairs)),
        ("in one run alone", _places(found.missing)),
        ("flipped verdicts", _places(found.flipped)),
        (f"share of flips, upper {CONFIDENCE:.0%} limit", f"{found.flips_max:.2%}"),
        ("commands that timed out at full density alone", _places(found.late)),
        ("more tries at full density", _places(found.again)),
        ("another reply", _places(found.other_text)),
        ("reward other than earned", _places(found.wrong)),
    ]
    head = (
        "sandboxes for agents", "seconds", "scored an hour", "sandboxes at once", "sandbox seconds",
        "held at most, MiB", "node, $ / 1,000 scored", "declared, $ / 1,000 scored",
    )  # fmt: skip
    return grid(("", ""), lines) + "\n" + grid(head, [_row(one) for one in (alone, full)])


def _row(one: Density) -> tuple[str, ...]:
    scored = sum(verdict.reward is not None for verdict in one.verdicts.values())
    cores, memory = psutil.cpu_count() or 1, psutil.virtual_memory().total
    node = Usage(0.0, 0.0, cores * one.seconds, memory * one.seconds, 0.0, 0.0)
    declared = Usage(
        DECLARED_VCPU * one.sandbox_s, DECLARED_BYTES * one.sandbox_s, 0.0, 0.0, 0.0, 0.0
    )
    prices = fixed().prices
    each = 1_000 / max(scored, 1)
    return (
        str(one.sandboxes),
        f"{one.seconds:.0f}",
        f"{scored / one.seconds * 3600:.0f}",
        str(one.at_once),
        f"{one.sandbox_s:.0f}",
        f"{one.used_bytes / GIB * 1024:.0f}",
        f"{bill(node, prices).used * each:.3f}",
        f"{bill(declared, prices).declared * each:.3f}",
    )


def _places(places: tuple[Place, ...]) -> str:
    if not places:
        return "0"
    shown = ", ".join(f"{ordinal}/{index}" for ordinal, index in places[:SHOWN])
    return f"{len(places)}: {shown}" + (", ..." if len(places) > SHOWN else "")
