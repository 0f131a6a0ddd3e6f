"""prime-rl's adaptive concurrency: `aimd`. The control law and its source are in `concurrency.py`.

Rollouts of a group start one by one as the cap admits them, the oldest task first; a new group opens
while fewer rollouts are open than the cap. Finished groups are trained in the order in which they
finished; one that lags more than 8 versions (`max_off_policy_steps`, published) or than the job allows
is dropped and its task queued again. The first cap is KV capacity / longest context, the ceiling 1024.

A hard trim cancels the youngest rollouts. As published their work is lost: the try ends without being
counted as failed, and the next one begins from nothing when the cap admits it. With `cancels` 0 they
are suspended at the end of their turn and go on later with what they have, which upstream cannot do; it
is a knob, so that a tuned run may show what the loss costs.

Engines report no queue to the coordinator. What a poll would say is derived from the contexts of the
rollouts placed on each engine: those whose turn generates or waits to, in the order in which the turns
began, run as far as KV and slots reach, the rest waits (`concurrency.load_of`); a group's shared prefix
counts once. Preemptions are never seen, as upstream says of agentic loads, whose excess queues.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Final

from domain.commands import EndTry
from domain.ids import GroupId, RolloutId
from domain.plan import Scheduling
from domain.schedule import Numbers
from domain.states import End
from scheduler.core import placement
from scheduler.core.failures import end_try
from scheduler.core.records import GroupRecord, HostRecord, JobRecord, RolloutRecord
from scheduler.core.strategies.concurrency import Controller, EngineLoad, Limits, load_of
from scheduler.core.strategies.discarding import Discarding

if TYPE_CHECKING:
    from scheduler.core.state import Pass, State

Member = tuple[GroupRecord, RolloutRecord]

ENGINES_WAIT_S: Final = 60.0
"""The first cap follows the engines as they join for so long; one that never comes must not hold it."""


class Aimd(Discarding):
    """A cap on rollouts in flight that follows the engines."""

    holds_places = True

    def __init__(self, scheduling: Scheduling) -> None:
        super().__init__(scheduling)
        limits = Limits(**{field.name: self.knob(field.name) for field in fields(Limits)})
        self._controller = Controller(limits, limits.in_flight_max)
        self._is_begun = False
        self._began_at: float | None = None
        self._poll_at = 0.0
        self._placed: dict[RolloutId, int] = {}
        """Place of each try in the order of starts."""
        self._starts = 0
        self._leaving: dict[RolloutId, None] = {}
        """Rollouts to suspend when their turn ends."""

    def lag_max(self, job: JobRecord) -> int:
        """Versions that a group may lag."""
        return int(self.knob("lag_max"))

    def holds_back(self, state: "State", job: JobRecord, now: float) -> Numbers | None:
        """As many rollouts are open as may be in flight."""
        started = sum(len(group.open_rollouts()) for group in job.training_groups())
        most = self._controller.in_flight_max
        return None if started < most else (("open_rollouts", started), ("max", most))

    def may_open(self, run: "Pass", job: JobRecord) -> bool:
        """While fewer rollouts are open than may be in flight, by the cap that the engines allow."""
        self._begin(run, job)
        return super().may_open(run, job)

    def choose_engine(
        self,
        run: "Pass",
        job: JobRecord,
        member: Member,
        fitting: list[HostRecord],
    ) -> HostRecord | None:
        """The group's engine or the least loaded, while the cap has room."""
        group, rollout = member
        if not group.is_training:
            return super().choose_engine(run, job, member, fitting)
        self._begin(run, job)
        if self._in_flight(run, job) >= self._controller.in_flight_max:
            return None
        self._starts += 1
        self._placed[rollout.rollout_id] = self._starts
        return super().choose_engine(run, job, member, fitting)

    def on_turn(
        self, run: "Pass", job: JobRecord, group: GroupRecord, rollout: RolloutRecord
    ) -> None:
        """A rollout that is to be suspended leaves here."""
        if rollout.rollout_id in self._leaving and rollout.host is not None:
            del self._leaving[rollout.rollout_id]
            placement.suspend(run, job, group, rollout)

    def on_left(
        self, run: "Pass", job: JobRecord, group: GroupRecord, rollout: RolloutRecord
    ) -> None:
        """A rollout that had tokens moves the turnover on; its place in flight is free."""
        self._leaving.pop(rollout.rollout_id, None)
        if self._placed.pop(rollout.rollout_id, None) is not None and rollout.tokens > 0:
            self._controller.record_finished(self._in_flight(run, job) + 1)

    def on_tick(self, run: "Pass", job: JobRecord) -> None:
        """Poll the engines; cancel what is too much, and let suspended rollouts go on where there is room."""
        if run.now < self._poll_at:
            return
        self._poll_at = run.now + self.knob("poll_s")
        self._begin(run, job)
        if not self._is_begun:
            return
        members = _members(job)
        in_flight = sum(1 for _, rollout in members if rollout.host is not None)
        excess = self._controller.observe(self._loads(run, job, members), in_flight)
        if excess > 0:
            self._shed(run, job, members, excess)
        else:
            self._let_go_on(run, job, members, self._controller.in_flight_max - in_flight)

    def _begin(self, run: "Pass", job: JobRecord) -> None:
        """The first cap, by what all granted engines hold; the ceiling where they never say it."""
        engines = run.state.engines_of(job)
        capacity = sum(engine.kv_tokens for engine in engines)
        if self._is_begun or capacity == 0:
            return
        self._began_at = run.now if self._began_at is None else self._began_at
        is_whole = job.gang is not None and len(engines) >= job.gang.engines
        self._is_begun = is_whole or run.now - self._began_at >= ENGINES_WAIT_S
        first = self.knob("in_flight_first") or capacity / self.knob("context_tokens")
        limits = self._controller.limits
        self._controller.cap = min(max(first, limits.in_flight_min), limits.in_flight_max)

    def _in_flight(self, run: "Pass", job: JobRecord) -> int:
        return sum(engine.load for engine in run.state.engines_of(job))

    def _loads(self, run: "Pass", job: JobRecord, members: list[Member]) -> list[EngineLoad]:
        """What each engine would report, engines that do not say what they hold left out."""
        loads = []
        for engine in run.state.engines_of(job):
            if engine.kv_tokens == 0:
                continue
            turns = [m for m in members if m[1].host == engine.host_id and m[1].gap_since is None]
            turns.sort(key=lambda member: (member[1].progress_at, member[1].rollout_id))
            loads.append(load_of(_contexts(turns), engine.kv_tokens, engine.slots))
        return loads

    def _shed(self, run: "Pass", job: JobRecord, members: list[Member], excess: int) -> None:
        """Cancel or mark the youngest."""
        placed = [member for member in members if member[1].host is not None]
        placed.sort(key=self._start_of, reverse=True)
        for group, rollout in placed[:excess]:
            if self.knob("cancels") == 1.0:
                self._cancel(run, job, group, rollout)
            elif rollout.host is not None and run.state.hosts[rollout.host].may_migrate:
                self._leaving[rollout.rollout_id] = None

    def _cancel(
        self, run: "Pass", job: JobRecord, group: GroupRecord, rollout: RolloutRecord
    ) -> None:
        command = EndTry(
            rollout_id=rollout.rollout_id,
            try_=rollout.try_,
            hop=rollout.hop,
            end=End.CANCELLED,
            cause="trimmed: the engines' KV is full",
            next_try=rollout.try_ + 1,
            counts=False,
        )
        self._placed.pop(rollout.rollout_id, None)
        end_try(run, job, group, rollout, command)
        run.touch(job)

    def _let_go_on(self, run: "Pass", job: JobRecord, members: list[Member], room: int) -> None:
        suspended = [rollout for _, rollout in members if rollout.is_suspended]
        suspended.sort(key=lambda rollout: (rollout.rank, rollout.rollout_id))
        for rollout in suspended[: max(room, 0)]:
            placement.resume(run, job, rollout)

    def _start_of(self, member: Member) -> tuple[int, RolloutId]:
        name = member[1].rollout_id
        return self._placed.get(name, 0), name


def _members(job: JobRecord) -> list[Member]:
    return [(group, r) for group in job.training_groups() for r in group.open_rollouts()]


def _contexts(turns: list[Member]) -> list[int]:
    """Tokens that each turn adds; a group's shared prefix is the first one's."""
    seen: dict[GroupId, None] = {}
    contexts = []
    for group, rollout in turns:
        private = max(rollout.tokens - group.shared_tokens, 0)
        contexts.append(private if group.group_id in seen else private + group.shared_tokens)
        seen[group.group_id] = None
    return contexts
