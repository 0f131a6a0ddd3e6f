"""What a strategy may decide. The base is plain: first come, first served, least loaded engine.

The core calls these at fixed places of a pass; a rule changes records only through the functions of
the core (`placement.suspend`, `placement.migrate`). Hooks must be cheap: `on_turn` and `on_gap` run
for every turn of every rollout.
"""

from typing import TYPE_CHECKING

from domain.plan import Scheduling
from scheduler.core.records import GroupRecord, HostRecord, JobRecord, RolloutRecord

if TYPE_CHECKING:
    from scheduler.core.state import Pass


class Rules:
    """The plain rules; each strategy overrides what it does otherwise."""

    uses_classes = False
    """Whether groups are promoted and critical; else all training groups are of one class."""
    paces = True
    """Whether no group ever becomes too old; a strategy that discards says False."""

    def __init__(self, scheduling: Scheduling) -> None:
        self.scheduling = scheduling

    def may_open(self, run: "Pass", job: JobRecord) -> bool:
        """Whether one more training group may start, besides pacing."""
        return True

    def value(self, job: JobRecord, group: GroupRecord) -> int:
        """Place of a training group inside its class; smaller runs first, below `kv.ranks.VALUE_SPAN`."""
        return group.ordinal

    def complete_key(self, job: JobRecord, group: GroupRecord) -> tuple[float, int]:
        """Order in which complete groups take positions."""
        return (float(group.completed_as), group.ordinal)

    def choose_engine(
        self,
        run: "Pass",
        job: JobRecord,
        member: tuple[GroupRecord, RolloutRecord],
        fitting: list[HostRecord],
    ) -> HostRecord | None:
        """The engine for a waiting rollout, of those that may run it; None lets it wait.

        `fitting` is ordered by id and never empty.
        """
        group = member[0]
        for engine in fitting:
            if engine.host_id == group.engine:
                return engine
        return min(fitting, key=lambda engine: (engine.load, engine.host_id))

    def on_gap(
        self, run: "Pass", job: JobRecord, group: GroupRecord, rollout: RolloutRecord
    ) -> None:
        """A tool gap of a rollout began."""

    def on_turn(
        self, run: "Pass", job: JobRecord, group: GroupRecord, rollout: RolloutRecord
    ) -> None:
        """A turn of a rollout ended and its next one would begin."""

    def on_left(
        self, run: "Pass", job: JobRecord, group: GroupRecord, rollout: RolloutRecord
    ) -> None:
        """A rollout left its engine for good: closed, failed or dropped."""

    def on_tick(self, run: "Pass", job: JobRecord) -> None:
        """Time passed; called about twice a second."""
