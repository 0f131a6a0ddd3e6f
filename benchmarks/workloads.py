"""The workload of a regime: from recorded traces where their files are, else from the generator.

`VENUS_TRACES` names the folder of the files. A report says which of the two it ran on.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.fixed import Regime, fixed
from simulation.workload.generator import fitted_bases
from simulation.workload.traces import TraceBases, read_traces
from simulation.workload.workload import Bases, Workload

TRACES_VARIABLE: Final = "VENUS_TRACES"

TRACES_BESIDE: Final = Path(__file__).resolve().parents[2] / "shared" / "traces" / "dev"
"""Where recorded traces lie when the environment names no folder: beside the tree."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where base trajectories come from."""

    bases: Bases
    name: str
    """`traces:STEM` or `fitted:STEM`, for reports."""


def traces_folder() -> Path | None:
    """The folder that the environment names, else the one beside the tree; None: the generator."""
    named = os.environ.get(TRACES_VARIABLE)
    if named:
        if not Path(named).is_dir():
            raise NotADirectoryError(f"{TRACES_VARIABLE} names {named}, which is no folder")
        return Path(named)
    return TRACES_BESIDE if TRACES_BESIDE.is_dir() else None


@cache
def source_of(stem: str, folder: Path | None) -> Source:
    """Recorded bases if `folder` has them, else fitted ones."""
    file = folder / f"{stem}.jsonl.gz" if folder else None
    if file is not None and file.exists():
        return Source(TraceBases(read_traces(file)), f"traces:{stem}")
    return Source(fitted_bases(stem), f"fitted:{stem}")


def workload_of(regime: Regime, seed: int, folder: Path | None) -> Workload:
    """The groups of a regime under a seed; the same for every strategy that is given it."""
    return Workload(source_of(regime.base, folder).bases, fixed().shape_of(regime), seed)
