"""What a strategy may decide. The base is plain: first come, first served, least loaded engine.

The core calls these at fixed places of a pass; a rule changes records only through the functions of
the core (`placement.suspend`, `placement.migrate`). Hooks must be cheap: `on_turn` and `on_gap` run
for every turn of every rollout.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from domain import knobs
from domain.plan import Scheduling

if TYPE_CHECKING:
    from domain.schedule import Numbers
    from scheduler.core.records import GroupRecord, HostRecord, JobRecord, RolloutRecord
    from scheduler.core.state import Pass, State


class Rules:
    """The plain rules; each strategy overrides what it does otherwise."""

    uses_classes = False
    """Whether groups are promoted and critical; else all training groups are of one class."""
    paces = True
    """Whether no group ever becomes too old; a strategy that discards says False."""
    holds_places = False
    """Whether `choose_engine` may let a training rollout wait though an engine fits."""

    def __init__(self, scheduling: Scheduling) -> None:
        self.scheduling = scheduling

    def knob(self, name: str) -> float:
        """One of the strategy's own numbers: the job's, else the published default."""
        return self.scheduling.knob(name, knobs.default_of(self.scheduling.strategy, name))

    def holds_back(self, state: "State", job: "JobRecord", now: float) -> "Numbers | None":
        """What keeps the strategy from one more training group, besides pacing; None: nothing.

        Whoever shows a schedule asks too: it changes nothing and learns nothing.
        """
        return None

    def may_open(self, run: "Pass", job: "JobRecord") -> bool:
        """Whether one more training group may start, besides pacing. May learn from being asked."""
        return self.holds_back(run.state, job, run.now) is None

    def value(self, job: "JobRecord", group: "GroupRecord") -> int:
        """Place of a training group inside its class; smaller runs first, below `kv.ranks.VALUE_SPAN`.

        Asked again when a member of the group ended a turn, a try or itself, or its class changed.
        """
        return group.ordinal

    def complete_key(self, job: "JobRecord", group: "GroupRecord") -> tuple[float, int]:
        """Order in which complete groups take positions; asked once, when the group completes."""
        return (float(group.completed_as), group.ordinal)

    def may_take(self, job: "JobRecord", group: "GroupRecord") -> bool:
        """Whether a complete group may take a position now."""
        return True

    def critical_key(self, job: "JobRecord") -> "Callable[[GroupRecord], tuple[float, int]] | None":
        """Order in which groups become critical; None is the job's order with its hysteresis."""
        return None

    def choose_engine(
        self,
        run: "Pass",
        job: "JobRecord",
        member: "tuple[GroupRecord, RolloutRecord]",
        fitting: "list[HostRecord]",
    ) -> "HostRecord | None":
        """The engine for a waiting rollout, of those that may run it; None lets it wait.

        `fitting` is ordered by id and never empty.
        """
        group = member[0]
        for engine in fitting:
            if engine.host_id == group.engine:
                return engine
        return least_loaded(fitting)

    def on_opened(self, run: "Pass", job: "JobRecord", group: "GroupRecord") -> None:
        """A group was opened; nothing of it runs yet."""

    def on_step(self, run: "Pass", job: "JobRecord", taken: "list[GroupRecord]") -> None:
        """A step was committed and consumed these groups."""

    def on_gap(
        self, run: "Pass", job: "JobRecord", group: "GroupRecord", rollout: "RolloutRecord"
    ) -> None:
        """A tool gap of a rollout began."""

    def on_turn(
        self, run: "Pass", job: "JobRecord", group: "GroupRecord", rollout: "RolloutRecord"
    ) -> None:
        """A turn of a rollout ended and its next one would begin."""

    def on_left(
        self, run: "Pass", job: "JobRecord", group: "GroupRecord", rollout: "RolloutRecord"
    ) -> None:
        """A try is over: closed, failed or dropped. A rollout may leave more than once."""

    def on_tick(self, run: "Pass", job: "JobRecord") -> None:
        """Time passed; called about twice a second."""


def least_loaded(fitting: "list[HostRecord]") -> "HostRecord":
    """The engine with the fewest rollouts: where a router without regard to prefixes sends a new one."""
    return min(fitting, key=lambda engine: (engine.load, engine.host_id))
