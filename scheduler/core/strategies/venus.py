"""The strategy of this platform: classes, one rank, residency, pressure, migration.

`scheduling.md` sections 2 to 6; every mechanism has a switch (`domain.plan.Mechanism`).
"""

from scheduler.core import migration, order
from scheduler.core.records import GroupRecord, HostRecord, JobRecord, RolloutRecord
from scheduler.core.state import Pass
from scheduler.core.strategies.rules import Rules


class Venus(Rules):
    """Everything of `scheduling.md`."""

    uses_classes = True

    def value(self, job: JobRecord, group: GroupRecord) -> int:
        """By the job's order."""
        return order.value_in(job, group, job.plan.order)

    def complete_key(self, job: JobRecord, group: GroupRecord) -> tuple[float, int]:
        """By the job's order."""
        return order.order_key(job)(group)

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
        migration.consider(run, job, group, rollout)
