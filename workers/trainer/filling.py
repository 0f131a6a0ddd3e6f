"""Fills and closes steps: backward as members are assigned, the update when all B are in.

A job whose strategy does not stream has its backward when all B are assigned.

    members (query) -> plan -> [rebuild] -> backward each -> all B in -> update
        -> weights and probe files -> step row commits -> the leader hears of it

Invariants: what is added follows the rows, never a frame; the order of backward is the order that the
row records; a step whose update happened is committed before anything else is done.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from domain.errors import PayloadUnreadable
from domain.events import PayloadLost, StepCommitted
from infra.failpoints import hit
from infra.logging import get_logger
from stores.bill import STEP_S, UPDATE_S
from stores.blobs import Blobs
from stores.system import training
from stores.system.training import Fates, Member, PayloadRef, StepRow
from stores.unit_of_work import Database, HostFence
from workers.trainer.batching import NonFinite
from workers.trainer.config import OnDivergence
from workers.trainer.open_step import OpenStep
from workers.trainer.publish import STEP_COMMITTED, Publisher
from workers.trainer.recovery import Restored, TrainerStops, read_payload
from workers.trainer.step import Closed
from workers.trainer.thread import TorchThread


@dataclass(frozen=True, slots=True)
class _Pending:
    """A step whose update happened in memory and whose files are written."""

    row: StepRow
    metrics: Mapping[str, float]
    fates: Fates


class StepFiller:
    """Owns the open step of one attempt. One task at a time."""

    def __init__(
        self,
        restored: Restored,
        database: Database,
        blobs: Blobs,
        *,
        fence: HostFence,
        thread: TorchThread,
        emit: Callable[[object], None],
    ) -> None:
        self.last = restored.last
        """The newest committed step."""
        self._origin = restored.origin
        self._learner = restored.learner
        self._database = database
        self._blobs = blobs
        self._fence = fence
        self._thread = thread
        self._emit = emit
        self._log = get_logger().bind(attempt_id=restored.origin.attempt_id)
        self._publisher = Publisher(
            blobs, restored.origin.job_id, restored.origin.attempt_id, fence.epoch
        )
        self._pending: _Pending | None = None
        self._open = self._next_step()
        self._busy_s = 0.0

    async def advance(self, may_close: bool) -> bool:
        """Do what the rows ask for; True when it is worth looking again at once.

        `may_close` False holds the update back, while a checkpoint of the last step is due. Raises
        TrainerStops when the step diverged and the job says stop.
        """
        if self._pending is not None:
            await self._commit(self._pending)
            return True
        async with self._database.begin(self._fence) as connection:
            members = await training.members(connection, self._origin.attempt_id, self._open.step)
        is_due = self._open.is_due(members, streams=self._learner.spec.streams)
        added = is_due and await self._follow(members)
        self._report_lost(members)
        if not (may_close and self._open.is_complete(members)):
            return added
        await self._close()
        return True

    async def _follow(self, members: tuple[Member, ...]) -> bool:
        self._open.forget_departed(members)
        plan = self._open.plan(members)
        if plan.rebuild:
            self._log.warning("gradient.rebuilt", step=self._open.step)
            await self._restart()
        for ref in plan.add:
            with self._at_work():
                await self._backward(ref)
        return bool(plan.add)

    async def _restart(self) -> None:
        await self._thread.run(self._learner.clear)
        self._open.restart()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Its seconds are part of the step's."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._busy_s += time.monotonic() - started

    async def _backward(self, ref: PayloadRef) -> None:
        try:
            payload = await read_payload(self._blobs, ref)
        except PayloadUnreadable as error:
            self._open.lost[ref.group_id] = str(error)
            self._log.warning("payload.lost", group_id=ref.group_id, cause=str(error))
            return
        counted = tuple(member.rollout_id for member in payload.members)
        if self._open.diverged is None:
            try:
                await self._thread.run(self._learner.add, payload)
            except NonFinite as error:
                await self._diverge(ref, error)
                return
        self._open.record(ref, counted)

    async def _diverge(self, ref: PayloadRef, error: NonFinite) -> None:
        """A group's loss is not finite; nothing of it may reach the gradient."""
        self._note_divergence(error)
        match self._learner.spec.on_divergence:
            case OnDivergence.STOP:
                raise TrainerStops("diverged", f"step {self._open.step}: {error}")
            case OnDivergence.SKIP:
                self._open.diverged = str(error)
                self._open.record(ref, ())
            case OnDivergence.WARN:
                self._open.excluded.append(ref.group_id)
                kept = tuple(self._open.trained)
                await self._restart()
                for one in kept:
                    await self._backward(one)

    def _note_divergence(self, error: NonFinite) -> None:
        self._open.cause = self._open.cause or str(error)
        self._log.error("step.diverged", step=self._open.step, cause=str(error))

    def _report_lost(self, members: tuple[Member, ...]) -> None:
        """Told again at every look, for as long as the position is not replaced."""
        for member in members:
            cause = self._open.lost.get(member.payload.group_id)
            if cause is not None:
                self._emit(
                    PayloadLost(
                        self._origin.attempt_id, self._open.step, member.payload.group_id, cause
                    )
                )

    async def _close(self) -> None:
        before_s = self._busy_s
        with self._at_work():
            row, closed = await self._publish()
        counted = tuple(name for names in self._open.counted.values() for name in names)
        metrics = {
            **{name: value for name, value in closed.metrics.items() if math.isfinite(value)},
            "diverged": float(row.diverged),
            STEP_S: self._busy_s,
            UPDATE_S: self._busy_s - before_s,
        }
        self._pending = _Pending(
            row, metrics, Fates(counted, tuple(self._open.excluded), self._open.cause)
        )
        await self._commit(self._pending)

    async def _publish(self) -> tuple[StepRow, Closed]:
        """Update the weights, store them and their probe; the row that will name them."""
        closed, diverged = await self._update()
        probe = await self._thread.run(self._learner.probe)
        if diverged:
            uri = self.last.weights_uri
            published = await self._publisher.write_unchanged(closed.step, uri, probe)
        else:
            weights = await self._thread.run(self._learner.weights_file)
            published = await self._publisher.write(closed.step, weights, probe)
        row = StepRow(
            job_id=self._origin.job_id,
            attempt_id=self._origin.attempt_id,
            step=closed.step,
            epoch=self._fence.epoch,
            payloads=tuple(self._open.trained),
            learning_rate=closed.learning_rate,
            weights_sha=closed.weights_sha,
            weights_uri=published.weights_uri,
            probe_uri=published.probe_uri,
            diverged=diverged,
        )
        return row, closed

    async def _update(self) -> tuple[Closed, bool]:
        """Apply the update, or close the step without one; says whether it diverged."""
        if self._open.diverged is not None or not self._open.trained:
            return await self._thread.run(self._learner.skip), True
        try:
            return await self._thread.run(self._learner.close), False
        except NonFinite as error:
            self._note_divergence(error)
            if self._learner.spec.on_divergence is OnDivergence.STOP:
                raise TrainerStops("diverged", f"step {self._open.step}: {error}") from error
            return await self._thread.run(self._learner.skip), True

    async def _commit(self, pending: _Pending) -> None:
        async with self._database.begin(self._fence) as connection:
            await training.commit_step(connection, pending.row, pending.metrics, pending.fates)
        self._pending = None
        self._busy_s = 0.0
        self.last = pending.row
        self._open = self._next_step()
        self._log.info(
            "step.committed",
            step=self.last.step,
            reward_mean=pending.metrics.get("reward_mean"),
            diverged=self.last.diverged,
        )
        if not hit(STEP_COMMITTED):
            policy, step = self.last.policy, self.last.step
            self._emit(StepCommitted(self._origin.attempt_id, step, policy, self.last.diverged))

    def _next_step(self) -> OpenStep:
        return OpenStep(self.last.step + 1, self._learner.spec.rollout.groups_per_batch)
