"""The strategy of this platform: classes, one rank, residency, pressure, migration.

`scheduling.md` sections 2 to 6; every mechanism has a switch (`domain.plan.Mechanism`).
"""

from scheduler.core import order
from scheduler.core.records import GroupRecord, JobRecord
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
