"""Records of runs: JSON lines, one a run, with the digests of what it ran on."""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.fixed import fixed
from benchmarks.schedule.cases import Cell
from benchmarks.workloads import traces_folder

ROOT: Final = Path(__file__).resolve().parents[2]

CODE: Final = ("simulation", "kv", "scheduler/core", "sandboxes/core", "domain")
"""What decides a run; a change in any file of them makes older records void."""

APART: Final = "simulation/sandboxes/"
"""No scheduling run goes through it."""

DIGITS: Final = 6
"""Significant digits of a figure in a record; seeds differ in the second."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Mean seconds from opening to completion, by quarters of the groups' longest members."""

    shortest: float
    second: float
    third: float
    fourth: float
    longest: float
    """Of the one group that waited longest."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one run gave. Figures are of the simulated world, but for `cpu_s`."""

    regime: str
    has_host_tier: bool
    name: str
    strategy: str
    variant: str
    knobs: dict[str, float]
    off: list[str]
    quality: float | None
    seed: int
    batches: int
    step_s: float
    """Makespan / batches."""
    bound_s: float
    """Perfect packing, by the regime's m."""
    ratio: float
    hit_rate: float
    staleness: dict[str, int]
    dropped: dict[str, int]
    wasted_tokens: int
    recomputed_tokens: int
    sampled_tokens: int
    wait_s: Waits
    active_batch: float
    busy_share: float
    trainer_wait_s: float
    """A step."""
    moves: int
    retractions: int
    offloads: int
    reloads: int
    events: int
    async_ratio: float = 0.0
    max_staleness: int = 0
    """What bound this run."""
    line_s: float = 0.0
    """A step, if every rollout had an engine to itself: what the run's a alone allows."""
    cpu_s: float = 0.0
    source: str = ""
    fixed: str = ""
    code: str = ""
    commit: str = ""
    key: str = ""

    @property
    def cell(self) -> Cell:
        """Where it belongs."""
        return Cell(self.regime, self.has_host_tier)

    @property
    def dropped_groups(self) -> int:
        """Groups given up for any reason."""
        return sum(self.dropped.values())

    @property
    def stalest(self) -> int:
        """The highest staleness of a trained group."""
        return max((int(lag) for lag in self.staleness), default=0)


@cache
def code_digest() -> str:
    """Digest of every file that decides a run."""
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in (".py", ".json") and not name.startswith(APART):
                digest.update(name.encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def commit_of_tree() -> str:
    """The commit, with a plus where the tree differs from it; empty outside a repository."""
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *CODE, "benchmarks")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{name}+" if changed else name


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Context:
    """What runs of this tree are keyed by, and the commit that they name."""

    fixed: str = field(default_factory=lambda: fixed().sha256)
    code: str = field(default_factory=code_digest)
    commit: str = field(default_factory=commit_of_tree)
    folder: Path | None = field(default_factory=traces_folder)

    @property
    def parts(self) -> tuple[str, ...]:
        """The part of a key that is not the case's."""
        return (self.fixed, self.code, "traces" if self.folder else "fitted")

    def stamp(self, record: Record, key: str) -> Record:
        """The record with everything that names what it ran on."""
        return replace(record, fixed=self.fixed, code=self.code, commit=self.commit, key=key)


def write_line(record: Record) -> str:
    """A record as one line."""
    return json.dumps(rounded(asdict(record)), separators=(",", ":")) + "\n"


def rounded(value: Any) -> Any:
    """A record's fields with figures cut to what seeds can tell apart."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return value


def read_lines(path: Path) -> Iterator[Record]:
    """Records of a file; a last line that an interruption cut is left out."""
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            row = json.loads(line)
            yield Record(**{**row, "wait_s": Waits(**row["wait_s"])})
