"""The strategy of this platform: classes, one rank, residency, pressure, migration.

`scheduling.md` sections 2 to 6; every mechanism has a switch (`domain.plan.Mechanism`).
"""

from typing import Final

from domain.plan import Mechanism, Scheduling
from domain.schedule import Numbers
from scheduler.core import migration, order
from scheduler.core.records import GroupRecord, HostRecord, JobRecord, RolloutRecord
from scheduler.core.rules import Rules
from scheduler.core.state import Pass, State

PRESSURE_STOP: Final = 2.0
"""Contexts in flight over the device tiers above which no further group starts: what waits is then as
much as what runs, and a later start samples with newer weights."""

LOOK_AGAIN_S: Final = 1.0
"""Between looks for room while no engine has any: until a rollout ends, the next look finds none either."""


class Venus(Rules):
    """Everything of `scheduling.md`."""

    uses_classes = True

    def __init__(self, scheduling: Scheduling) -> None:
        super().__init__(scheduling)
        self._full_until = 0.0
        """No engine had room for a move; until then none is looked for."""

    def value(self, job: JobRecord, group: GroupRecord) -> int:
        """By the job's order."""
        return order.value_in(job, group, job.plan.order)

    def complete_key(self, job: JobRecord, group: GroupRecord) -> tuple[float, int]:
        """By the job's order."""
        return order.order_key(job)(group)

    def holds_back(self, state: State, job: JobRecord, now: float) -> Numbers | None:
        """Contexts in flight that are too far above what the engines hold."""
        if not self.scheduling.has(Mechanism.ADMISSION):
            return None
        engines = state.engines_of(job)
        held = sum(engine.kv_held for engine in engines)
        capacity = sum(engine.kv_tokens for engine in engines)
        if not capacity or held <= PRESSURE_STOP * capacity:
            return None
        return (("kv_held", held), ("max", PRESSURE_STOP * capacity))

    def choose_engine(
        self,
        run: Pass,
        job: JobRecord,
        member: tuple[GroupRecord, RolloutRecord],
        fitting: list[HostRecord],
    ) -> HostRecord | None:
        """The least loaded engine where pressure is known, else the group's own for its prefix.

        Members of a group begin alike and grow together: on one engine their contexts would fill it
        at the same time, while the prefix that they share is a small part of what they become.
        """
        if any(not engine.kv_tokens for engine in fitting):
            return super().choose_engine(run, job, member, fitting)
        return min(fitting, key=lambda engine: (engine.load, engine.kv_held, engine.host_id))

    def on_gap(self, run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord) -> None:
        """A gap is when a rollout may move."""
        if run.now < self._full_until:
            return
        if migration.consider(run, job, group, rollout) is migration.Move.NO_ROOM:
            self._full_until = run.now + LOOK_AGAIN_S
