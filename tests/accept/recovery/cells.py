"""The cells of the matrix, and which of them a run takes.

A cell is a failpoint that fires while a small job runs, and what strikes at that moment: SIGKILL of
one of seven victims, SIGSTOP past the lease of the process that is there or of others, a flushed
broker, a killed Postgres. A run of 24 is drawn by the commit's sha, each strike at least once.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

CELLS_DRAWN: Final = 24

ROOT: Final = Path(__file__).resolve().parents[3]


class Place(StrEnum):
    """The process in which a failpoint fires."""

    LEADER = "leader"
    KEEPER = "keeper"
    ENGINE = "engine"
    NODE = "node"
    TRAINER = "trainer"
    CHORES = "chores"
    API = "api"


class Stimulus(StrEnum):
    """What makes the failpoint fire once the job runs, where the job alone does not."""

    NONE = "none"
    LOSE_ENGINE = "an engine host is killed"
    PUSH = "an environment is pushed"


@dataclass(frozen=True, slots=True)
class Failpoint:
    """A named place; it fires at the `count`-th hit after it was armed."""

    name: str
    place: Place
    count: int = 1
    stimulus: Stimulus = Stimulus.NONE


class Victim(StrEnum):
    """What SIGKILL takes."""

    LEADER = "leader"
    ENGINE = "rollout host"
    TRAINER = "trainer host"
    KEEPER = "keeper"
    POOL_CHILD = "pool child"
    NODE = "node agent"
    ENVIRONMENT = "environment process"
    API = "api"
    CHORE = "chore"


class Strike(StrEnum):
    """What happens at the failpoint besides SIGKILL of a victim."""

    KILL = "kill"
    STOP = "stop"
    STOP_WITH_KEEPER = "stop with its keeper"
    FLUSH = "broker flush"
    POSTGRES = "Postgres killed"


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the closing table."""

    failpoint: Failpoint
    strike: Strike
    victim: Victim | None = None

    @property
    def name(self) -> str:
        """For people, and for pytest's `-k`."""
        what = self.strike.value if self.victim is None else f"{self.strike.value} {self.victim}"
        return f"{self.failpoint.name}/{what}".replace(" ", "-")


FAILPOINTS: Final = (
    Failpoint("leader.event", Place.LEADER),
    Failpoint("leader.before_commit", Place.LEADER),
    Failpoint("leader.after_commit_before_send", Place.LEADER),
    Failpoint("keeper.before_claim", Place.KEEPER, stimulus=Stimulus.LOSE_ENGINE),
    Failpoint("keeper.after_claim", Place.KEEPER, stimulus=Stimulus.LOSE_ENGINE),
    Failpoint("chore.taken", Place.CHORES, stimulus=Stimulus.PUSH),
    Failpoint("api.after_commit_before_reply", Place.API, stimulus=Stimulus.PUSH),
    Failpoint("rollout.attached", Place.ENGINE),
    Failpoint("rollout.generated", Place.ENGINE, count=2),
    Failpoint("rollout.taken", Place.ENGINE, count=2),
    Failpoint("rollout.before_upload", Place.ENGINE),
    Failpoint("rollout.uploaded", Place.ENGINE),
    Failpoint("rollout.closed", Place.ENGINE),
    Failpoint("sync.chunk", Place.ENGINE, count=2),
    Failpoint("engine.sync.before_read", Place.ENGINE),
    Failpoint("engine.sync.after_read", Place.ENGINE),
    Failpoint("node.sandbox_created", Place.NODE),
    Failpoint("node.intent_journalled", Place.NODE, count=2),
    Failpoint("node.replied", Place.NODE, count=2),
    Failpoint("node.before_grade_commit", Place.NODE),
    Failpoint("node.after_grade_commit", Place.NODE),
    Failpoint("backward.middle", Place.TRAINER, count=2),
    Failpoint("weights.written", Place.TRAINER),
    Failpoint("step.committed", Place.TRAINER),
    # Six files a checkpoint: the third is in its middle.
    Failpoint("checkpoint.file_written", Place.TRAINER, count=3),
    Failpoint("checkpoint.manifest_written", Place.TRAINER),
)
"""Every failpoint on the way of a job; a test compares."""

ELSEWHERE: Final = frozenset(
    {"webhook.sent", "engine.kv.store", "engine.kv.fetch", "kv.exported", "kv.fetched"}
)
"""No small job passes them. `tests/integration/webhooks/test_crashes.py` kills at the first,
`tests/integration/workers/rollout/test_migration_kills.py` at those of a rollout that moves; pages that are
lost on their way are in `tests/unit/workers/rollout/embedded/test_outer.py`."""

OWN_VICTIM: Final = {
    Place.LEADER: Victim.LEADER,
    Place.ENGINE: Victim.ENGINE,
    Place.TRAINER: Victim.TRAINER,
    Place.NODE: Victim.NODE,
    Place.KEEPER: Victim.POOL_CHILD,
    Place.API: Victim.API,
    Place.CHORES: Victim.CHORE,
}
"""The victim that is the very process at the failpoint."""

ANYWHERE: Final = tuple(v for v in Victim if v not in (Victim.API, Victim.CHORE))
"""Victims at every failpoint; the other two die at their own only, where no job depends on them."""

HOSTS: Final = (Victim.ENGINE, Victim.TRAINER, Victim.NODE)


@cache
def all_cells() -> tuple[Cell, ...]:
    """The whole matrix."""
    kills = [Cell(f, Strike.KILL, victim) for f in FAILPOINTS for victim in ANYWHERE]
    others = [
        Cell(f, Strike.KILL, OWN_VICTIM[f.place])
        for f in FAILPOINTS
        if OWN_VICTIM[f.place] not in ANYWHERE
    ]
    return (*kills, *others, *_stops(), *_servers())


def _stops() -> list[Cell]:
    """SIGSTOP of whoever is at the failpoint; of a host's pool child; of a host and its keeper."""
    cells = []
    for failpoint in FAILPOINTS:
        own = OWN_VICTIM[failpoint.place]
        if own not in ANYWHERE:
            continue
        cells.append(Cell(failpoint, Strike.STOP, own))
        if own in HOSTS:
            cells.append(Cell(failpoint, Strike.STOP_WITH_KEEPER, own))
            cells.append(Cell(failpoint, Strike.STOP, Victim.POOL_CHILD))
    return cells


def _servers() -> list[Cell]:
    return [Cell(f, strike) for strike in (Strike.FLUSH, Strike.POSTGRES) for f in FAILPOINTS]


def drawn_cells() -> tuple[Cell, ...]:
    """What this run takes: all with FULL=1, else 24 by the commit's sha; hard ones spread out."""
    random = Random(seed())
    if os.environ.get("FULL", "") not in ("", "0"):
        cells = list(all_cells())
        random.shuffle(cells)
        return tuple(cells)
    return tuple(draw(random, CELLS_DRAWN))


def seed() -> str:
    """The commit's sha, so that every commit looks elsewhere and each is repeatable."""
    done = subprocess.run(
        ("git", "rev-parse", "HEAD"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "no commit"


def draw(random: Random, number: int) -> list[Cell]:
    """Each kind of strike once, then more kills; each at the failpoint that was used least."""
    kinds: dict[tuple[Strike, Victim | None], list[Cell]] = {}
    for cell in all_cells():
        kinds.setdefault((cell.strike, cell.victim), []).append(cell)
    order = list(kinds)
    random.shuffle(order)
    order += [kind for kind in order if kind[0] is Strike.KILL and kind[1] in ANYWHERE]
    uses = {failpoint.name: 0 for failpoint in FAILPOINTS}
    drawn: list[Cell] = []
    for kind in order[:number]:
        cell = _least_used(random, [one for one in kinds[kind] if one not in drawn], uses)
        uses[cell.failpoint.name] += 1
        drawn.append(cell)
    random.shuffle(drawn)
    return drawn


def _least_used(random: Random, cells: Sequence[Cell], uses: dict[str, int]) -> Cell:
    least = min(uses[cell.failpoint.name] for cell in cells)
    return random.choice([cell for cell in cells if uses[cell.failpoint.name] == least])
