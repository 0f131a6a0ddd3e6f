"""Records of runs: a JSON line of figures each, and beside it what the platform recorded of the job."""

import hashlib
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.e2e.cases import Case
from benchmarks.e2e.costs import Costs
from benchmarks.e2e.measures import Member
from benchmarks.schedule.records import ROOT, commit_of_tree, rounded
from simulation.recorded import RecordedJob

DEFAULT_FILE: Final = ROOT / "out" / "e2e.jsonl"

CODE: Final = (
    "benchmarks/e2e", "domain", "environments", "infra", "kv", "sandboxes", "scheduler", "stores",
    "venusrl/env", "workers",
)  # fmt: skip
"""What a run goes through; a change in any file of them makes older records void."""

JUDGES: Final = (
    "__main__.py", "checks.py", "quick.py", "report.py", "simulated.py", "tables.py",
)  # fmt: skip
"""Files of the benchmark that start runs or look at them."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one job took."""

    cell: str
    entry: str
    strategy: str
    off: list[str]
    seed: int
    steps: int
    async_ratio: float
    max_staleness: int
    is_within: bool
    engines: int
    slots: int
    kv_pages: int
    """Of one engine, as it reported."""
    step_s: float
    later_step_s: float
    commits_s: list[float]
    """Since the first group opened."""
    pressure: float
    demand: float
    hit_rate: float
    evictions: float
    preemptions: float
    sampled_tokens: float
    prefilled_tokens: float
    engine_busy_share: float
    """Of the engines' time, as they count it."""
    engaged_s: float
    """Of all engines: with turns in slots."""
    prefill_s: float
    """Of it, computing prompts."""
    engine_steps: float
    attended_tokens: float
    """That prefilled tokens attended to, summed over them."""
    kv_read_tokens: float
    """Contexts of the turns that decoded, summed over the steps."""
    generating_share: float
    unplaced_share: float
    """Slot time from a sandbox's begin to a place: the set-up of the environment, messages, decisions."""
    decision_share: float
    """Of it, the time from the leader's hearing of the sandbox on."""
    decisions: int
    """Placements whose time is in the event log."""
    live_max: int
    """The most rollouts that had a place at the same time."""
    staleness: dict[str, int]
    dropped_groups: int
    failed_tries: int
    work: str
    """Digest of what was trained."""
    load: float
    """Processes that wanted a core, beside the run's own, when it began."""
    key: str = ""
    code: str = ""
    commit: str = ""
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a job for the simulated side."""

    job: RecordedJob
    members: tuple[Member, ...]
    spec: dict[str, object] = field(default_factory=dict)
    costs: Costs | None = None
    """Of this machine's engine, where they were measured."""


def work_digest(members: tuple[Member, ...]) -> str:
    """Equal for equal trained rollouts, whatever the order."""
    text = json.dumps([asdict(one) for one in sorted(members)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def code_digest() -> str:
    """Of every file that a run goes through."""
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name in JUDGES and path.parent.name == "e2e":
                continue
            digest.update(path.relative_to(ROOT).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(case: Case) -> str:
    """What must be equal for a finished run to count."""
    return hashlib.sha256(f"{case.parts} {code_digest()}".encode()).hexdigest()[:20]


def machine() -> str:
    """Where figures come from."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}"


def write_line(run: Run) -> str:
    """A record as one line."""
    return json.dumps(rounded(asdict(run)), separators=(",", ":")) + "\n"


def read_lines(path: Path) -> Iterator[Run]:
    """Records of a file; a last line that an interruption cut is left out."""
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield Run(**json.loads(line))


def append(path: Path, run: Run, kept: Kept) -> None:
    """Write a finished run: first what was recorded, then the line that makes it count."""
    folder = kept_folder(path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{run.key}.json").write_bytes(msgspec.json.encode(kept))
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1])
    with path.open("a") as lines:
        lines.write(write_line(run))


def read_kept(path: Path, key: str) -> Kept | None:
    """What was recorded of a run, if it still lies there."""
    file = kept_folder(path) / f"{key}.json"
    return msgspec.json.decode(file.read_bytes(), type=Kept) if file.exists() else None


def kept_folder(path: Path) -> Path:
    """Beside the lines."""
    return path.with_suffix("")


def stamps(case: Case) -> dict[str, str]:
    """What a record says of where it is from."""
    return {
        "key": key_of(case),
        "code": code_digest()[:16],
        "commit": commit_of_tree(),
        "machine": machine(),
    }
