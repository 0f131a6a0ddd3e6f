"""The rollout host: holds placements, runs one turn loop each, answers the leader's frames.

    leader --frames--> on_frame --+-> Place, Ranks, Forget, Suspend   acted on at once
                                  +-> Sync                            one task, newest order first
    each rollout: TurnLoop.run -> Closer.close -> RolloutClosed | TryFailed to the leader

Invariants: at most one task per rollout, that of its highest hop; a rollout is in `held` until its
close is committed or its failure reported; a hop seen once is never run again. Any fault of the
engine or of this code ends the process with a cause: the journal lives on at the node agent.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from domain.engine import Capability
from domain.events import HeldRollout, TryFailed
from domain.ids import AttemptId, HostId, OrganizationId, RolloutId
from domain.kv_ticket import KvFailure, KvRefused, KvTicket
from domain.schedule import WaitReason
from domain.states import HostKind
from domain.wire import Forget, HostSnapshot, KvSource, Place, Ranks, Suspend, Sync
from infra import failpoints
from infra.clock import Clock
from infra.logging import get_logger
from stores.blobs import Blobs
from stores.system.hops import HopUse
from workers.models.chat import ChatFormat
from workers.rollout import seams
from workers.rollout.agent_client import NodeAgents
from workers.rollout.closing import RolloutCloser
from workers.rollout.departures import Departures
from workers.rollout.figures import Figures
from workers.rollout.job_spec import JobSpec, limits_of
from workers.rollout.kv_transfer.door import KvDoor
from workers.rollout.kv_transfer.fetcher import Fetched
from workers.rollout.measures import Synced, Used
from workers.rollout.meter import HostMeter
from workers.rollout.outcomes import Superseded, TryEnded
from workers.rollout.ports import Engine
from workers.rollout.reports import TurnReporter
from workers.rollout.turn_loop import LoopPorts, RolloutPlan, TurnLoop
from workers.rollout.turn_queue import Queued, reasons_of
from workers.rollout.weights import VersionGate, WeightSync

HOPS_MAX: Final = 100_000
"""Remembered hops; the oldest are forgotten, long after any late frame of theirs."""


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """Who this host is and for whom it works."""

    host_id: HostId
    epoch: int
    attempt_id: AttemptId
    organization_id: OrganizationId


@dataclass(frozen=True, slots=True)
class HostPorts:
    """What the host works with. `emit` sends to the leader, or drops while none is connected."""

    engine: Engine
    chat: ChatFormat
    agents: NodeAgents
    closer: RolloutCloser
    blobs: Blobs
    clock: Clock
    emit: Callable[[object], None]
    set_mode: Callable[[str], None]
    measured: Callable[[Used | Synced], None] = field(default=lambda used: None)
    """Hears of each placement's use when it has ended, and of each sync."""
    kv: KvDoor | None = None
    """None: rollouts leave without pages and are computed anew where they come."""


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Where fetched weights lie, and how long a sync may take in each of its two parts."""

    folder: Path
    deadline_s: float


@dataclass(slots=True)
class Held:
    """A placement that runs."""

    place: Place
    loop: TurnLoop
    task: asyncio.Task[None] = field(init=False)


class RolloutHost:
    """All state lives in one asyncio loop; methods that do not wait are safe from anywhere in it."""

    def __init__(
        self, identity: HostIdentity, spec: JobSpec, ports: HostPorts, sync_plan: SyncPlan
    ) -> None:
        self._identity = identity
        self._spec = spec
        self._ports = ports
        self._held: dict[RolloutId, Held] = {}
        self._hops: dict[RolloutId, int] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._log = get_logger().bind(host_id=identity.host_id, epoch=identity.epoch)
        self.counts: Counter[str] = Counter()
        self.fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set to the exception that must end the process."""
        gate = VersionGate(ports.engine)
        meter = HostMeter(ports.clock.monotonic)
        self._reports = TurnReporter(ports.clock, ports.emit)
        self._loop_ports = LoopPorts(
            ports.engine,
            gate,
            ports.chat,
            ports.clock,
            self._reports.add,
            meter,
            fetch=self._fetch,
        )
        self._departures = (
            None
            if ports.kv is None
            else Departures(ports.engine, ports.kv.transfer, self._held.__contains__)
        )
        self.sync = WeightSync(
            ports.engine,
            gate,
            ports.blobs,
            host_id=identity.host_id,
            epoch=identity.epoch,
            folder=sync_plan.folder,
            clock=ports.clock,
            deadline_s=sync_plan.deadline_s,
            emit=ports.emit,
            has_other_pins=self._has_other_pins,
            set_mode=ports.set_mode,
            kv=spec.rollout.kv_on_update,
            synced=lambda version, seconds: ports.measured(
                Synced(identity.attempt_id, version, seconds)
            ),
        )
        self._figures = Figures(ports.engine, ports.clock)
        self._syncing = asyncio.create_task(self.sync.run())
        self._syncing.add_done_callback(self._check)

    def snapshot(self) -> HostSnapshot:
        """All that this host holds, rollouts that wait for Postgres included."""
        info, door = self._ports.engine.info(), self._ports.kv
        return HostSnapshot(
            host_id=self._identity.host_id,
            epoch=self._identity.epoch,
            kind=HostKind.ENGINE,
            attempt_id=self._identity.attempt_id,
            slots=info.slots,
            held=tuple(
                HeldRollout(
                    p.rollout_id,
                    p.try_,
                    p.hop,
                    held.loop.episode.finished_turns,
                    held.loop.episode.oldest_version,
                    held.loop.episode.tokens,
                )
                for held in self._held.values()
                for p in (held.place,)
            ),
            policy_version=info.version,
            kv_tokens=info.kv_tokens,
            may_migrate=door is not None and Capability.KV_EXPORT in info.capabilities,
            data_address="" if door is None else door.address,
            data_key="" if door is None else door.key,
        )

    def figures(self) -> dict[str, float]:
        """Figures of each heartbeat."""
        counts = {f"rollouts_{name}": float(count) for name, count in self.counts.items()}
        kv = {} if self._ports.kv is None else self._ports.kv.transfer.figures()
        return self._figures.read() | counts | kv | {"held": float(len(self._held))}

    def phases(self) -> dict[RolloutId, str]:
        """What each rollout on this host does at the moment, a `WaitReason`."""
        engine, loops = self._ports.engine, {name: held.loop for name, held in self._held.items()}
        queued = [
            Queued(name, loops[name].rank, loops[name].episode.tokens)
            for name in engine.waiting()
            if name in loops and loops[name].phase is WaitReason.RUNNING
        ]
        reasons = reasons_of(queued, engine.stats(), engine.info().page_tokens)
        return {name: reasons.get(name, loop.phase).value for name, loop in loops.items()}

    def on_frame(self, frame: object) -> None:
        """Act on one frame of the leader; never waits."""
        match frame:
            case Place():
                self._place(frame)
            case Ranks(ranks=ranks):
                self._rank(dict(ranks))
            case Forget(rollout_id=rollout_id, hop=hop):
                self._forget(rollout_id, hop)
            case Suspend(rollout_id=rollout_id, hop=hop, keep_kv=keep_kv):
                self._suspend(rollout_id, hop, keep_kv)
            case Sync(policy=policy):
                self.sync.order(policy)
            case _:
                self.counts["unknown_frames"] += 1
                self._log.warning("frame.unexpected", kind=type(frame).__name__)

    async def depart(self, rollout_id: RolloutId, hop: int) -> KvTicket:
        """The ticket for whoever proved to be the next host after the placement with this hop.

        Such a proof says that the placement is over, also where the leader's own word was lost.
        Raises KvRefused.
        """
        if self._departures is None:
            raise KvRefused(KvFailure.UNSUPPORTED)
        self._suspend(rollout_id, hop, keep_kv=True)
        return await self._departures.ticket(rollout_id, hop)

    async def close(self) -> None:
        """Stop every task and wait for them."""
        for rollout_id in list(self._held):
            self._drop(rollout_id)
        self._syncing.cancel()
        await asyncio.gather(self._syncing, *self._stopping, return_exceptions=True)
        if self._departures is not None:
            await self._departures.close()
        await self._reports.close()

    def _place(self, place: Place) -> None:
        floor = self._hops.get(place.rollout_id, -1)
        if place.hop <= floor:
            # The same hop again is a repeated command, a lower one comes from the past.
            self.counts["refused" if place.hop < floor else "repeated"] += 1
            return
        self._remember(place.rollout_id, place.hop)
        self._drop(place.rollout_id)
        context_tokens = self._ports.engine.info().context_tokens
        limits = limits_of(self._spec, context_tokens, place.evaluation, place.environment)
        plan = RolloutPlan(
            self._identity.organization_id,
            self._spec.sampling(place.evaluation),
            limits,
            self._spec.model.keeps_history,
        )
        agent = self._ports.agents.client(place.node_address, place.node_key)
        held = Held(place, TurnLoop(place, plan, agent, self._loop_ports))
        self._held[place.rollout_id] = held
        held.task = asyncio.create_task(self._run(held))
        held.task.add_done_callback(self._check)

    async def _run(self, held: Held) -> None:
        place, ports = held.place, self._ports
        agent = ports.agents.client(place.node_address, place.node_key)
        try:
            ending = await held.loop.run()
            closed = await ports.closer.close(place, held.loop.episode, ending, agent)
        except TryEnded as failed:
            self.counts["failed"] += 1
            self._release(held)
            ports.emit(TryFailed(place.rollout_id, place.try_, place.hop, failed.end, failed.cause))
            return
        except Superseded:
            self.counts["superseded"] += 1
            self._release(held)
            return
        finally:
            use = held.loop.use
            measured = HopUse(use.engine_s, use.tool_wait_s)
            ports.measured(Used(place.rollout_id, place.hop, measured))
        self.counts["closed"] += 1
        self.counts["drift"] += held.loop.episode.drift
        self._reports.settle(place.rollout_id)
        self._release(held)
        if not failpoints.hit(seams.CLOSED):
            ports.emit(closed)

    def _rank(self, ranks: dict[RolloutId, int]) -> None:
        for rollout_id, rank in ranks.items():
            held = self._held.get(rollout_id)
            if held is not None:
                held.loop.rank = rank
        self._ports.engine.set_rank(ranks)

    def _forget(self, rollout_id: RolloutId, hop: int) -> None:
        if hop > self._hops.get(rollout_id, -1):
            self._remember(rollout_id, hop)
        held = self._held.get(rollout_id)
        if held is not None and held.place.hop <= hop:
            self.counts["forgotten"] += 1
            self._drop(rollout_id)

    def _suspend(self, rollout_id: RolloutId, hop: int, keep_kv: bool) -> None:
        if hop > self._hops.get(rollout_id, -1):
            self._remember(rollout_id, hop)
        held = self._held.get(rollout_id)
        if held is None or held.place.hop > hop:
            return
        self.counts["suspended"] += 1
        self._drop(rollout_id, keeps_keys=keep_kv and self._departures is not None)
        if keep_kv and self._departures is not None:
            self._departures.begin(rollout_id, hop, held.task)

    async def _fetch(self, rollout_id: RolloutId, source: KvSource) -> Fetched | None:
        """The pages of a rollout that comes from another host; None: they are computed."""
        if self._ports.kv is None:
            return None
        try:
            fetched = await self._ports.kv.fetcher.fetch(rollout_id, source)
        except KvRefused as refused:
            self._log.info("kv.not_fetched", rollout_id=rollout_id, cause=str(refused))
            return None
        failpoints.hit(seams.FETCHED)
        return fetched

    def _drop(self, rollout_id: RolloutId, keeps_keys: bool = False) -> None:
        """Abort a placement at once; its task ends by itself."""
        held = self._held.get(rollout_id)
        if held is None:
            return
        self._release(held, keeps_keys)
        held.task.cancel()
        self._stopping.add(held.task)
        held.task.add_done_callback(self._stopping.discard)

    def _release(self, held: Held, keeps_keys: bool = False) -> None:
        if self._held.get(held.place.rollout_id) is held:
            del self._held[held.place.rollout_id]
            self._reports.drop(held.place.rollout_id)
            self._loop_ports.prefixes.leave(held.place.group_id, held.place.rollout_id)
            if not keeps_keys:
                self._ports.engine.release(held.place.rollout_id)

    def _remember(self, rollout_id: RolloutId, hop: int) -> None:
        self._hops.pop(rollout_id, None)
        self._hops[rollout_id] = hop
        if len(self._hops) > HOPS_MAX:
            del self._hops[next(iter(self._hops))]

    def _has_other_pins(self, version: int) -> bool:
        places = (held.place for held in self._held.values())
        return any(p.evaluation and p.pinned_version != version for p in places)

    def _check(self, task: asyncio.Task[None]) -> None:
        """An exception that no rollout accounts for ends the process, with itself as the cause."""
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not self.fault.done():
            self.fault.set_exception(error)
