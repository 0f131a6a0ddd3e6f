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
from domain.schedule import Numbers
from scheduler.core.records import GroupPhase, GroupRecord, JobRecord
from scheduler.core.requeue import drop_and_queue_again
from scheduler.core.strategies.discarding import Discarding, behind, serves_newest

if TYPE_CHECKING:
    from scheduler.core.state import Pass, State


class SlimeSync(Discarding):
    """One batch at a time: nothing is generated for a later step."""

    def __init__(self, scheduling: Scheduling) -> None:
        super().__init__(scheduling)
        self._over_sampling = self.knob("over_sampling")

    def holds_back(self, state: "State", job: JobRecord, now: float) -> Numbers | None:
        """The sampled batch is begun or full, or an engine has older weights than the newest."""
        batch = job.plan.groups_per_batch
        started, most = len(job.training_groups()), int(self._over_sampling * batch)
        if len(job.positions) == batch or started >= most:
            return (("filled", len(job.positions)), ("begun", started), ("max", most))
        return None if serves_newest(state, job) else behind(state, job)

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

    def holds_back(self, state: "State", job: JobRecord, now: float) -> Numbers | None:
        """The pool is full, as many finished groups wait as it holds, or its next top-up is to come."""
        topped_up = self._topped_up_at
        if topped_up is not None and 0.0 < now - topped_up < self._poll_s:
            return (("until", topped_up + self._poll_s),)
        pool = pool_groups(self._pool_per_engine, len(state.engines_of(job)), job)
        groups = job.training_groups()
        unfinished = sum(1 for group in groups if group.is_unfinished)
        waiting = sum(1 for group in groups if group.phase is GroupPhase.COMPLETE)
        if unfinished >= pool or waiting >= pool:
            return (("open", unfinished), ("complete", waiting), ("max", pool))
        return None

    def may_open(self, run: "Pass", job: JobRecord) -> bool:
        """A group that may start is part of a top-up, from which on the next one is counted."""
        is_free = super().may_open(run, job)
        if is_free:
            self._topped_up_at = run.now
        return is_free


class SlimeBounded(SlimeAsync):
    """The same pool; a group that lags too far is dropped and its task queued again."""

    def lag_max(self, job: JobRecord) -> int:
        """The bound of the pull request."""
        return int(self.knob("lag_max"))


def pool_groups(per_engine: float, engines: int, job: JobRecord) -> int:
    """Groups of the resident pool: so many for each engine, at most ceil(a x B)."""
    ceiling = -int(-job.plan.async_ratio * job.plan.groups_per_batch // 1)
    return min(int(per_engine * engines), ceiling)
