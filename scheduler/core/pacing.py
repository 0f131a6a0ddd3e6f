"""Pacing, not discarding: when may a job open one more training group?

`accepted + open < (m + v + 1) x B` and `open < ceil(a x B)` (`scheduling.md` section 2). A committed
step consumed exactly B complete groups, also a diverged one, so accepted = v x B + assigned + waiting
and the first bound says: groups alive < (m + 1 - lag) x B, where `lag` is how far the newest engine is
behind the trainer. With the lag in it every group can meet its last valid step if groups are assigned
by last valid step (`batches.py`): nothing is ever too old in steady state.
"""

import math
from typing import TYPE_CHECKING

from domain.plan import OnNoSignal
from scheduler.core.records import HostRecord, JobRecord

if TYPE_CHECKING:
    from scheduler.core.state import Pass


def newest_version(engines: list[HostRecord]) -> int:
    """Newest version that an engine serves; -1 without engines."""
    return max((engine.version for engine in engines), default=-1)


def alive_max(job: JobRecord, version: int) -> int:
    """Groups that may be alive (open, waiting or assigned) if the next one is sampled with `version`."""
    lookahead = job.plan.max_staleness + 1 - (job.committed - version)
    return min(max(lookahead, 0) * job.plan.groups_per_batch, last_max(job))


def last_max(job: JobRecord) -> int:
    """Groups that the steps which are left can train, however new they are."""
    return max(job.plan.max_steps - job.committed, 0) * job.plan.groups_per_batch


def kept_max(job: JobRecord) -> int:
    """Groups that may be alive at all: a lowered limit leaves those in the step being filled."""
    return max(alive_max(job, job.committed), len(job.positions))


def open_max(job: JobRecord) -> int:
    """Groups that may be unfinished at once: ceil(a x B)."""
    return math.ceil(job.plan.async_ratio * job.plan.groups_per_batch)


def may_open(run: "Pass", job: JobRecord, version: int) -> bool:
    """Whether the job may start one more training group on engines that serve `version`."""
    if version < 0 or job.committed - version > 1:
        return False
    if _waits_for_signal(job, run.now) or _waits_for_success(job, run.now):
        return False
    groups = job.roster
    is_paced = groups.training < alive_max(job, version) and groups.unfinished < open_max(job)
    return is_paced and job.rules.may_open(run, job)


def _waits_for_signal(job: JobRecord, now: float) -> bool:
    """Under `on_no_signal: wait` one probe group at a time looks for variance."""
    if not job.signal.is_waiting or job.plan.on_no_signal is not OnNoSignal.WAIT:
        return False
    return job.roster.unfinished > 0 or now < job.signal.probe_after


def _waits_for_success(job: JobRecord, now: float) -> bool:
    """While nothing succeeds one probe group at a time looks whether that has changed."""
    if not is_failing(job):
        return False
    return now < job.probe_after or job.roster.unfinished > 0


def is_failing(job: JobRecord) -> bool:
    """Whether a whole batch of tries failed in a row."""
    return job.failed_in_row >= job.plan.groups_per_batch * job.plan.group_size


def next_ordinal(job: JobRecord) -> int:
    """Take the next training ordinal: those that a checkpoint left unconsumed first, ascending."""
    if job.unconsumed:
        return job.unconsumed.popleft()
    job.next_ordinal += 1
    return job.next_ordinal - 1


def data_position(job: JobRecord) -> tuple[int, tuple[int, ...]]:
    """Next ordinal, and the ordinals issued but not consumed by a committed step."""
    alive = [group.ordinal for group in job.training_groups()]
    return job.next_ordinal, tuple(sorted({*alive, *job.unconsumed, *job.returned}))
