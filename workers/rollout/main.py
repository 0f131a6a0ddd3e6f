"""Entry of an engine host's process: engine, host and link of one job attempt, under a keeper.

The engine starts without a policy, at version -1. Which one it serves first is the leader's choice,
not the newest row's: an evaluation that is under way may need an older version.
"""

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from domain.engine import Capability
from domain.errors import FencedOut, NotFound, PayloadUnreadable, StoreUnavailable
from domain.ids import AttemptId, RolloutId
from domain.kv_ticket import KvTicket
from infra.clock import SystemClock
from infra.host_process import HostContext, run_host
from infra.link import LeaderLink
from infra.logging import get_logger
from infra.settings import Settings
from kv.rules import KvRules
from stores.blobs import Blobs
from stores.system.leadership import find_leader
from stores.system.rollouts import HostedJob, job_of
from stores.unit_of_work import Database, HostFence
from workers.models.config import ConfigRefused
from workers.models.folder import ModelFolder, WeightsUnreadable, read_folder
from workers.models.sources import base_folder
from workers.outbox import Outbox
from workers.rollout.agent_client import AgentPool
from workers.rollout.closing import Closer
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits
from workers.rollout.embedded.tiers.stores import TierSizes, TierUnavailable
from workers.rollout.exposition import Exposition
from workers.rollout.figures import EngineWatch
from workers.rollout.host import HostIdentity, HostPorts, RolloutHost, SyncPlan
from workers.rollout.job_spec import JobSpec, read_spec
from workers.rollout.kv_transfer.door import KvDoor
from workers.rollout.kv_transfer.transfer import KvTransfer
from workers.rollout.measures import Measure, Ready, write
from workers.rollout.outcomes import EngineFault
from workers.rollout.ports import Engine
from workers.rollout.scripted.engine import ScriptedEngine, ScriptedSizes
from workers.rollout.scripted.script import read_script
from workers.rollout.seams import scripted_engine

SYNC_SHARE: Final = 0.4
"""Each of a sync's two parts ends within this share of what the keeper grants to a sync."""

READ_TRIES: Final = 20
"""Reads of the job while Postgres restarts, a second apart; then another host may try."""

WATCH_S: Final = 1.0
"""How often the engine's progress is looked at; its bound is several seconds at least."""


async def serve(context: HostContext) -> None:
    """Be the engine host until the lease ends; an unexpected end is a fault with a cause."""
    attempt_id = context.birth.attempt_id
    if attempt_id is None:
        raise context.fault("an engine host without an attempt")
    settings, clock = context.settings, SystemClock()
    database, blobs = Database(settings.database_url), Blobs(settings.object_store_url)
    job = await _read(database, attempt_id)
    spec = read_spec(job.spec, job.manifests, settings.limits.context_tokens)
    scratch = scratch_folder(settings.home, context)
    base = scratch.parent / f"base-e{context.epoch}"
    try:
        path = await base_folder(database, blobs, attempt_id, spec.model.base, base)
    except (NotFound, PayloadUnreadable) as error:
        raise context.fault(f"base model: {error}") from error
    transfer = KvTransfer(time.time)
    folder, engine = await _start_engine(context, spec, path, attempt_id, transfer)
    door = _door_of(engine, transfer, lambda rollout, hop: host.depart(rollout, hop))
    agents = AgentPool(context.host_id, context.epoch, clock)
    fence = HostFence(context.host_id, context.epoch)
    outbox = Outbox[Measure](database, fence, clock, write)
    outbox.put(Ready(context.host_id, context.epoch))
    link = LeaderLink(
        context.host_id,
        context.epoch,
        context.birth.key,
        find_leader=lambda: find_leader(settings.database_url),
        snapshot=lambda: host.snapshot(),
        on_frame=lambda frame: host.on_frame(frame),
        figures=lambda: host.figures(),
        phases=lambda: host.phases(),
    )

    def set_mode(mode: str) -> None:
        context.mode = mode

    host = RolloutHost(
        HostIdentity(context.host_id, context.epoch, attempt_id, job.organization_id),
        spec,
        HostPorts(
            engine=engine,
            chat=folder.chat,
            agents=agents,
            closer=Closer(database, fence, blobs, job.job_id, clock),
            blobs=blobs,
            clock=clock,
            emit=link.send,
            set_mode=set_mode,
            measured=outbox.put,
            kv=door,
        ),
        SyncPlan(scratch, settings.intervals.progress_sync_s * SYNC_SHARE),
    )
    watch = EngineWatch(engine, clock, settings.intervals.progress_decode_s)
    try:
        context.mode = "decode"
        loops = [link.run(), outbox.run(), *(one.run() for one in (door,) if one is not None)]
        await _until_over(context, host, loops, watch)
    finally:
        await host.close()
        if door is not None:
            await door.close()
        await outbox.flush()
        await agents.close()
        await engine.close()
        await database.close()
        remove_scratch(settings.home, context)


async def _start_engine(
    context: HostContext,
    spec: JobSpec,
    path: Path,
    attempt_id: AttemptId,
    transfer: KvTransfer,
) -> tuple[ModelFolder, Engine]:
    """Load the model in a thread: signals and the keeper are heard meanwhile."""
    try:
        folder = read_folder(path)
        engine = await asyncio.to_thread(
            make_engine,
            spec.model.base,
            folder,
            context.settings,
            transfer,
            rules=spec.rules,
            script=scripted_engine(attempt_id),
        )
    except (ConfigRefused, TierUnavailable, WeightsUnreadable) as error:
        raise context.fault(f"engine: {error}") from error
    return folder, engine


def make_engine(
    name: str,
    folder: ModelFolder,
    settings: Settings,
    transfer: KvTransfer,
    *,
    rules: KvRules,
    script: Path | None = None,
) -> Engine:
    """An engine with the model's base weights, which are no policy of the attempt yet.

    It is the embedded one, unless a test gives a script to replay. `transfer` carries pages between
    engines; `rules` are those of the job.
    """
    if script is not None:
        context, played = folder.config.max_position_embeddings, read_script(script)
        vocabulary, slots = folder.config.vocab_size, settings.limits.engine_slots
        return ScriptedEngine(
            name,
            ScriptedSizes(vocabulary, context, slots, played.kv_tokens),
            played,
            SystemClock(),
            version=-1,
            transfer=transfer,
        )
    return EmbeddedEngine(name, folder, limits_of(settings, rules), version=-1, transfer=transfer)


def limits_of(settings: Settings, rules: KvRules) -> EngineLimits:
    """Sizes of an embedded engine of this installation, and what its tenants weigh."""
    limits = settings.limits
    tiers = TierSizes(limits.kv_host_pages, limits.kv_disk_pages)
    return EngineLimits(limits.engine_slots, limits.kv_pages, tiers, rules, settings.tenants)


def _door_of(
    engine: Engine,
    transfer: KvTransfer,
    depart: Callable[[RolloutId, int], Awaitable[KvTicket]],
) -> KvDoor | None:
    """A door where the engine hands pages over; else nobody listens."""
    if Capability.KV_EXPORT not in engine.info().capabilities:
        return None
    door = KvDoor(transfer, depart, metrics=Exposition(engine.stats, transfer.figures).text)
    get_logger().info("engine.door_open", address=door.address)
    return door


def scratch_folder(home: Path, context: HostContext) -> Path:
    """Where this epoch's fetched weights lie; what earlier epochs left is removed."""
    remove_scratch(home, context)
    return home / "hosts" / context.host_id / f"e{context.epoch}"


def remove_scratch(home: Path, context: HostContext) -> None:
    """No fetched weights of this host stay: a job's hosts never come back under other ids."""
    shutil.rmtree(home / "hosts" / context.host_id, ignore_errors=True)


async def _read(database: Database, attempt_id: AttemptId) -> HostedJob:
    for remaining in reversed(range(READ_TRIES)):
        try:
            async with database.begin() as connection:
                return await job_of(connection, attempt_id)
        except StoreUnavailable:
            if not remaining:
                raise
            await asyncio.sleep(1.0)
    raise AssertionError("the last try returns or raises")


async def _until_over(
    context: HostContext,
    host: RolloutHost,
    loops: Sequence[Coroutine[Any, Any, None]],
    watch: EngineWatch,
) -> None:
    async def look() -> None:
        while True:
            watch.check()
            await asyncio.sleep(WATCH_S)

    tasks = [asyncio.create_task(loop) for loop in (*loops, look())]
    stopped = asyncio.create_task(context.stopping.wait())
    ends: set[asyncio.Future[Any]] = {*tasks, stopped, host.fault}
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    except (EngineFault, FencedOut) as error:
        raise context.fault(f"{type(error).__name__}: {error}") from error
    finally:
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, stopped, return_exceptions=True)


if __name__ == "__main__":
    run_host(serve)
