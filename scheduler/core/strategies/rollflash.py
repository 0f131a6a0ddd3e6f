"""ROLL Flash (arXiv 2510.11345) with RollArt (arXiv 2512.22560) as a switch: `rollflash`.

Source: `roll/distributed/scheduler/rollout_scheduler.py` and `router.py` (alibaba/ROLL, Apache-2.0,
snapshot of 2026-08-19). Environments stand in groups of G; each group has a queue of episodes
(`episodes.py`) and works on the first that has a seat left. A batch takes the head of each queue once
before it takes a second of any. Turns are independent requests, first come, first served; an environment
stays on the engine that had the fewest when it began; nothing looks at KV memory.

Published defaults: redundancy 0, no filter, a ratio of 0 (synchronous) and of 1 in the asynchronous
examples and papers, which is the default here; it is never above the job's `max_staleness`. 128 queues
by default, in the examples as many as the batch has groups, which is the default here. An expired
episode's task is queued again. With `rollart` the version is checked at each turn: a trajectory that
began more than `async_ratio` versions ago is aborted and begun anew, instead of its group's episode.

Upstream a queue that gives nothing holds the batch for ever; here one that may not open a group because
a and m are used up by others does not.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from domain.commands import EndTry
from domain.ids import HostId, RolloutId
from domain.plan import Scheduling
from domain.schedule import Numbers
from domain.states import End
from scheduler.core import pacing
from scheduler.core.failures import end_try
from scheduler.core.records import GroupPhase, GroupRecord, HostRecord, JobRecord, RolloutRecord
from scheduler.core.requeue import drop_and_queue_again
from scheduler.core.rules import Rules
from scheduler.core.strategies.discarding import behind, serves_newest
from scheduler.core.strategies.episodes import EpisodeQueue

if TYPE_CHECKING:
    from scheduler.core.state import Pass, State


QUEUES_MAX: Final = 4096
"""Upper bound of queues, as of groups of a batch: number and queue share one value of a rank."""


@dataclass(slots=True)
class Seat:
    """One environment: it runs one rollout at a time and keeps its engine."""

    engine: HostId | None = None
    rollout: RolloutId | None = None


class RollFlash(Rules):
    """Queues of episodes with the head of each first."""

    paces = False
    holds_places = True

    def __init__(self, scheduling: Scheduling) -> None:
        super().__init__(scheduling)
        self._is_rollart = self.knob("rollart") == 1.0
        self._queues: list[EpisodeQueue] = []
        self._queue_of: dict[int, int] = {}
        """Queue of each live group by ordinal."""
        self._seats: list[list[Seat]] = []
        self._given: dict[int, None] = {}
        """Queues that gave their group of this round."""

    def ratio(self, job: JobRecord) -> int:
        """Versions that an episode may lag."""
        return min(int(self.knob("async_ratio")), job.plan.max_staleness)

    def holds_back(self, state: "State", job: JobRecord, now: float) -> Numbers | None:
        """The step's weight update is not over, or each episode of each queue has its group."""
        if not serves_newest(state, job):
            return behind(state, job)
        is_free = any(queue.unopened() is not None for queue in self._queues)
        if is_free or not self._queues or self._lost(job):
            return None
        return (("queues", len(self._queues)), ("open", len(self._queue_of)))

    def may_open(self, run: "Pass", job: JobRecord) -> bool:
        """While a queue has an episode that no group stands for, after the step's weight update."""
        self._begin(job)
        self._replace_lost(job)
        return super().may_open(run, job)

    def on_opened(self, run: "Pass", job: JobRecord, group: GroupRecord) -> None:
        """The new group stands for the first such episode, of the first queue that has it."""
        if not group.is_training:
            return
        self._begin(job)
        waiting = [
            (episode.number, index)
            for index, queue in enumerate(self._queues)
            if (episode := queue.unopened()) is not None
        ]
        index = min(waiting)[1]
        episode = self._queues[index].unopened()
        assert episode is not None, group.group_id
        episode.ordinal = group.ordinal
        self._queue_of[group.ordinal] = index

    def value(self, job: JobRecord, group: GroupRecord) -> int:
        """By episode: an environment works on the first that has a seat left."""
        return self._number(group) * QUEUES_MAX + self._queue_of.get(group.ordinal, 0)

    def complete_key(self, job: JobRecord, group: GroupRecord) -> tuple[float, int]:
        """By episode, then as they completed: a head is always before what stands behind it."""
        return (float(self._number(group)), group.completed_as)

    def may_take(self, job: JobRecord, group: GroupRecord) -> bool:
        """Only the head of a queue, and a second of a queue only when each other has given one."""
        for group_id in job.positions.values():
            self._note_taken(job.groups[group_id].ordinal)
        index = self._queue_of.get(group.ordinal)
        if index is None:
            return True
        head = self._queues[index].head()
        is_head = head is not None and head.ordinal == group.ordinal
        return is_head and not (index in self._given and self._somebody_owes(job))

    def on_step(self, run: "Pass", job: JobRecord, taken: list[GroupRecord]) -> None:
        """Episodes that the step makes too old are given up, one more of each queue begins."""
        if not self._queues:
            return
        for group in taken:
            self._note_taken(group.ordinal)
            self._forget(group.ordinal)
        self._replace_lost(job)
        expired = [
            episode.ordinal
            for queue in self._queues
            for episode in queue.advance(job.committed, expires=not self._is_rollart)
        ]
        for ordinal in expired:
            found = _live(job, ordinal)
            if found is not None and found.phase is not GroupPhase.ASSIGNED:
                self._give_up(run, job, found, "its episode expired")
        self._drop_overdue(run, job)

    def choose_engine(
        self,
        run: "Pass",
        job: JobRecord,
        member: tuple[GroupRecord, RolloutRecord],
        fitting: list[HostRecord],
    ) -> HostRecord | None:
        """The engine of a free environment of the queue; without one the rollout waits."""
        group, rollout = member
        index = self._queue_of.get(group.ordinal)
        if index is None:
            return super().choose_engine(run, job, member, fitting)
        seats = self._seats[index]
        own = (s for s in seats if s.rollout == rollout.rollout_id)
        seat = next(own, None) or next((s for s in seats if not _is_taken(run, s)), None)
        if seat is None:
            return None
        engine = next((e for e in fitting if e.host_id == seat.engine), None)
        if engine is None:
            counts = self._environments_of()
            engine = min(fitting, key=lambda e: (counts.get(e.host_id, 0), e.host_id))
        seat.engine, seat.rollout = engine.host_id, rollout.rollout_id
        return engine

    def on_turn(
        self, run: "Pass", job: JobRecord, group: GroupRecord, rollout: RolloutRecord
    ) -> None:
        """RollArt: a trajectory that began too many versions ago is begun anew."""
        if not self._is_rollart or not group.is_training or rollout.oldest_version is None:
            return
        if job.committed - rollout.oldest_version <= self.ratio(job):
            return
        command = EndTry(
            rollout_id=rollout.rollout_id,
            try_=rollout.try_,
            hop=rollout.hop,
            end=End.CANCELLED,
            cause="its trajectory began too many versions ago",
            next_try=rollout.try_ + 1,
            counts=False,
        )
        end_try(run, job, group, rollout, command)
        run.touch(job)

    def _begin(self, job: JobRecord) -> None:
        """Make the queues at the first step; groups of a restored job stand in none."""
        if self._queues:
            return
        count = int(self.knob("env_groups")) or job.plan.groups_per_batch
        self._queues = [EpisodeQueue(self.ratio(job)) for _ in range(count)]
        self._seats = [[Seat() for _ in range(job.plan.group_size)] for _ in range(count)]
        for queue in self._queues:
            queue.advance(job.committed)

    def _replace_lost(self, job: JobRecord) -> None:
        """A group that was dropped for a reason of its own leaves its place to another one."""
        for ordinal in self._lost(job):
            queue = self._queues[self._queue_of[ordinal]]
            if queue.find(ordinal) is not None:
                queue.refill()
            self._forget(ordinal)

    def _lost(self, job: JobRecord) -> list[int]:
        """Ordinals in a queue whose group is not live any more."""
        live = {group.ordinal for group in job.training_groups()}
        return [ordinal for ordinal in self._queue_of if ordinal not in live]

    def _drop_overdue(self, run: "Pass", job: JobRecord) -> None:
        """What the job's own bound refuses is done again too."""
        bound = self.ratio(job) if self._is_rollart else job.plan.max_staleness
        for group in job.training_groups():
            ended = [r.oldest_version for r in group.rollouts if not r.is_open and not r.is_lost]
            known = [version for version in ended if version is not None]
            is_old = bool(known) and job.committed - min(known) > bound
            if is_old and group.phase is not GroupPhase.ASSIGNED:
                self._give_up(run, job, group, f"lags more than {bound} versions")

    def _give_up(self, run: "Pass", job: JobRecord, group: GroupRecord, cause: str) -> None:
        index = self._queue_of.get(group.ordinal)
        if index is not None and self._queues[index].find(group.ordinal) is not None:
            self._queues[index].refill()
        self._forget(group.ordinal)
        drop_and_queue_again(run, job, group, cause)

    def _number(self, group: GroupRecord) -> int:
        """Number of the group's episode; 0 for a group that stands in no queue."""
        index = self._queue_of.get(group.ordinal)
        episode = None if index is None else self._queues[index].find(group.ordinal)
        return 0 if episode is None else episode.number

    def _forget(self, ordinal: int) -> None:
        index = self._queue_of.pop(ordinal, None)
        if index is not None:
            self._queues[index].remove(ordinal)

    def _note_taken(self, ordinal: int) -> None:
        """A group has a position: its queue has given; a second one of a queue begins a round."""
        index = self._queue_of.get(ordinal)
        if index is None or self._queues[index].find(ordinal) is None:
            return
        if index in self._given:
            self._given.clear()
        self._given[index] = None
        self._queues[index].remove(ordinal)

    def _somebody_owes(self, job: JobRecord) -> bool:
        """Whether another queue has yet to give its group of this round, and can."""
        groups = job.training_groups()
        unfinished = sum(1 for group in groups if group.is_unfinished)
        may_grow = len(groups) < pacing.kept_max(job) and unfinished < pacing.open_max(job)
        heads = [queue.head() for i, queue in enumerate(self._queues) if i not in self._given]
        return any(e is not None and (may_grow or e.ordinal is not None) for e in heads)

    def _environments_of(self) -> dict[HostId, int]:
        counts: dict[HostId, int] = {}
        for seats in self._seats:
            for seat in seats:
                if seat.engine is not None:
                    counts[seat.engine] = counts.get(seat.engine, 0) + 1
        return counts


def _is_taken(run: "Pass", seat: Seat) -> bool:
    found = None if seat.rollout is None else run.state.find_rollout(seat.rollout)
    return found is not None and found[2].host is not None


def _live(job: JobRecord, ordinal: int | None) -> GroupRecord | None:
    return next((group for group in job.training_groups() if group.ordinal == ordinal), None)
