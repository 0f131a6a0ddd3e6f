"""Dropping a training group and queueing its task again, for strategies that discard what is too old.

The platform's own way is pacing, which never has to. A baseline that discards would otherwise train
other tasks than the strategies it is compared with. The task comes back as a repeat: an ordinal of its
own that names the same task (`domain.ids.repeat_of`), issued before new ordinals, first dropped first.
A checkpoint holds a queued repeat; a new leader of the same attempt knows only those that were opened.
"""

from domain.ids import REPEAT_SPAN, repeat_of
from domain.states import DropReason
from scheduler.core.failures import drop_group
from scheduler.core.records import GroupPhase, GroupRecord, JobRecord
from scheduler.core.state import Pass


def drop_and_queue_again(run: Pass, job: JobRecord, group: GroupRecord, cause: str) -> None:
    """Give a group up without a position; its task is the next to be opened.

    A task that was repeated too often is given up with it.
    """
    assert group.phase is not GroupPhase.ASSIGNED, group.group_id
    is_complete = group.phase is GroupPhase.COMPLETE
    reason = DropReason.STALE if is_complete else DropReason.UNSALVAGEABLE
    drop_group(run, job, group, reason, cause)
    repeat = repeat_of(group.ordinal)
    if repeat is not None:
        queued = sum(1 for ordinal in job.unconsumed if ordinal >= REPEAT_SPAN)
        job.unconsumed.insert(queued, repeat)


def lag(job: JobRecord, group: GroupRecord) -> int:
    """Versions between the newest policy and the oldest token of a group; 0 while it has none."""
    oldest = group.oldest_known_version()
    return 0 if oldest is None else job.committed - oldest
