"""Recorded trajectories as bases: gzip JSON lines of the compact trajectory format, version 1.

The files are not part of the tree. Generation times in them are outputs of the system that recorded
them and are never read: token counts, tools and tool seconds are.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from simulation.workload.trajectory import Tool, Trajectory, Turn

FORMAT_VERSION: Final = 1

KINDS: Final = {
    "Read": Tool.READ, "Grep": Tool.SEARCH, "Glob": Tool.SEARCH, "Edit": Tool.EDIT,
    "Write": Tool.WRITE, "TodoWrite": Tool.PLAN, "bash:test": Tool.BASH_TEST,
    "bash:python": Tool.BASH_PYTHON, "bash:install": Tool.BASH_INSTALL, "bash:git": Tool.BASH_GIT,
    "bash:search": Tool.BASH_SEARCH, "bash:edit": Tool.BASH_EDIT, "bash:other": Tool.BASH_OTHER,
}  # fmt: skip
"""Recorded names of tools; what is not among them is `other`."""

SLOWEST_FIRST: Final = (
    Tool.OTHER, Tool.BASH_TEST, Tool.BASH_INSTALL, Tool.BASH_PYTHON, Tool.BASH_OTHER,
    Tool.BASH_GIT, Tool.BASH_SEARCH, Tool.BASH_EDIT, Tool.WRITE, Tool.EDIT, Tool.SEARCH,
    Tool.READ, Tool.PLAN,
)  # fmt: skip
"""Tools called together are named after the one that is usually the slowest: it makes the gap."""


@dataclass(frozen=True, slots=True)
class TraceBases:
    """Bases drawn from recorded trajectories, each as often as any other."""

    trajectories: Sequence[Trajectory]

    def draw(self, chance: Random) -> Trajectory:
        """One of the recorded trajectories."""
        return self.trajectories[int(chance.random() * len(self.trajectories))]


def read_traces(path: Path) -> list[Trajectory]:
    """Trajectories of a file in its order; rows without turns (timings, outcomes) are a `ValueError`."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [_trajectory(json.loads(line), path) for line in lines]


def _trajectory(row: Mapping[str, Any], path: Path) -> Trajectory:
    if row.get("v") != FORMAT_VERSION or not row.get("turns"):
        raise ValueError(f"{path.name} has a row that is no trajectory of version {FORMAT_VERSION}")
    *before, last = (_turn(turn) for turn in row["turns"])
    return Trajectory((*before, Turn(last.new_tokens, last.output_tokens, None, 0.0)))


def _turn(turn: Mapping[str, Any]) -> Turn:
    return Turn(
        new_tokens=turn["new_tokens"],
        output_tokens=turn["output_tokens"],
        tool=tool_of(turn["tool"]),
        tool_s=turn["tool_seconds"] or 0.0,
    )


def tool_of(recorded: str | None) -> Tool | None:
    """The kind of what was called, several calls joined by `+`."""
    if recorded is None:
        return None
    kinds = [KINDS.get(name, Tool.OTHER) for name in recorded.split("+")]
    return min(kinds, key=SLOWEST_FIRST.index)
