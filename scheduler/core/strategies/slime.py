"""slime (THUDM/slime, Apache-2.0): `slime-sync`, `slime-async`, `slime-bounded`.

Sources: `slime/rollout/sglang_rollout.py`, `slime/rollout/fully_async_rollout.py`, `train_async.py`,
snapshot of 2026-08-21; the bounded variant is pull request 2278. Published defaults:

- sync: `over_sampling_batch_size` = the batch; all samples of a prompt enter together; groups are taken
  as they complete; at B the rest is aborted, and without `--partial-rollout` begun anew.
- fully async: a resident pool of `sglang_server_concurrency` (512) x engines groups, topped up once a
  second unless as many finished groups wait; the trainer takes the oldest B finished, first in first
  out; a weight update does not wait; no bound on staleness.
- bounded: groups whose lag exceeds 2 are dropped at collection.

Engines of all three are first come, first served over least recently used pages. The job's a and m bind
them too: the pool is never above ceil(a x B), so that all strategies hold the same memory, and
`slime-async` is without bound only where the job's `max_staleness` is.
"""

from typing import TYPE_CHECKING

from domain.plan import Scheduling
from scheduler.core.records import GroupPhase, GroupRecord, JobRecord
from scheduler.core.requeue import drop_and_queue_again
from scheduler.core.strategies.discarding import Discarding, serves_newest

if TYPE_CHECKING:
    from scheduler.core.state import Pass


class SlimeSync(Discarding):
    """One batch at a time: nothing is generated for a later step."""

    def __init__(self, scheduling: Scheduling) -> None:
        super().__init__(scheduling)
        self._over_sampling = self.knob("over_sampling")

    def may_open(self, run: "Pass", job: JobRecord) -> bool:
        """Up to the sampled batch, with the newest weights only."""
        batch = job.plan.groups_per_batch
        if len(job.positions) == batch:
            return False
        started = len(job.training_groups())
        return started < int(self._over_sampling * batch) and serves_newest(run, job)

    def on_tick(self, run: "Pass", job: JobRecord) -> None:
        """Once the batch is full the surplus is aborted; its prompts come back."""
        if len(job.positions) == job.plan.groups_per_batch:
            self._abort_surplus(run, job)

    def on_step(self, run: "Pass", job: JobRecord, taken: list[GroupRecord]) -> None:
        """The next batch begins with nothing in flight."""
        self._abort_surplus(run, job)

    @staticmethod
    def _abort_surplus(run: "Pass", job: JobRecord) -> None:
        for group in job.training_groups():
            if group.phase is not GroupPhase.ASSIGNED:
                drop_and_queue_again(run, job, group, "over-sampled: the batch is full")


class SlimeAsync(Discarding):
    """A resident pool that is topped up once a second; no bound of its own."""

    def __init__(self, scheduling: Scheduling) -> None:
        super().__init__(scheduling)
        self._pool_per_engine = self.knob("pool_per_engine")
        self._poll_s = self.knob("poll_s")
        self._topped_up_at: float | None = None

    def may_open(self, run: "Pass", job: JobRecord) -> bool:
        """While the pool has room and fewer finished groups wait than it holds."""
        since = None if self._topped_up_at is None else run.now - self._topped_up_at
        if since is not None and 0.0 < since < self._poll_s:
            return False
        pool = pool_groups(self._pool_per_engine, len(run.state.engines_of(job)), job)
        groups = job.training_groups()
        unfinished = sum(1 for group in groups if group.is_unfinished)
        waiting = sum(1 for group in groups if group.phase is GroupPhase.COMPLETE)
        if unfinished >= pool or waiting >= pool:
            return False
        self._topped_up_at = run.now
        return True


class SlimeBounded(SlimeAsync):
    """The same pool; a group that lags too far is dropped and its task queued again."""

    def lag_max(self, job: JobRecord) -> int:
        """The bound of the pull request."""
        return int(self.knob("lag_max"))


def pool_groups(per_engine: float, engines: int, job: JobRecord) -> int:
    """Groups of the resident pool: so many for each engine, at most ceil(a x B)."""
    ceiling = -int(-job.plan.async_ratio * job.plan.groups_per_batch // 1)
    return min(int(per_engine * engines), ceiling)
