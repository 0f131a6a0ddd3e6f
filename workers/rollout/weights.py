"""Weights of this host's engine: which version it serves, and how it gets the next one.

    order -> [evaluation rollouts end] -> fetch, check -> pause(keep) -> update -> probe -> resume

Fetching touches no engine, so that a slow or broken object store costs nothing. From the pause on,
an expected failure leaves the engine with the weights it had; one that does not come back in time
is an `EngineFault`. Orders are served one at a time, the newest first; an older one is forgotten.
"""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import MsgspecError

from domain.engine import (
    EngineRefused,
    KvMode,
    PauseMode,
    Probe,
    WeightKind,
    WeightRef,
)
from domain.errors import PayloadUnreadable
from domain.events import EngineSynced, EngineSyncFailed
from domain.ids import HostId
from domain.policy import PolicyRef
from domain.states import End
from infra import failpoints
from infra.clock import Clock
from infra.codec import from_json
from infra.logging import get_logger
from stores.blobs import Blobs
from workers.rollout import seams
from workers.rollout.outcomes import EngineFault, TryEnded
from workers.rollout.ports import Engine

CHUNK_BYTES: Final = 256 * 1024
"""Weights are written in pieces of this size; each is a failpoint."""

EVALUATION_POLL_S: Final = 0.1
"""How often a waiting sync looks whether the evaluation rollouts have ended."""


class SyncRefused(Exception):
    """A sync did not happen; the engine serves what it served."""


class VersionGate:
    """What the engine serves and is about to serve; turns pass through `admit`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._changed = asyncio.Event()
        self._target: int | None = None

    @property
    def version(self) -> int:
        """Version in use; -1 while the engine has no policy of the attempt."""
        return self._engine.info().version

    async def admit(self, pinned: int | None) -> str | None:
        """Wait until a turn may start; returns the sha that a pinned turn must be sampled under.

        A pinned turn whose version is neither served nor on its way is split: TryEnded.
        """
        while True:
            info = self._engine.info()
            if pinned is None and info.version >= 0:
                return None
            if pinned is not None and info.version == pinned:
                return info.weights_sha
            if pinned is not None and self._target != pinned:
                raise TryEnded(End.ENGINE_LOST, "version_split")
            await self._changed.wait()

    def aim(self, version: int | None) -> None:
        """Tell waiting turns what the engine is about to serve; None: nothing new."""
        self._target = version
        self._changed.set()
        self._changed = asyncio.Event()


class WeightSync:
    """Serves the leader's orders. `order` never waits; `run` is the one task that acts."""

    def __init__(
        self,
        engine: Engine,
        gate: VersionGate,
        blobs: Blobs,
        *,
        host_id: HostId,
        epoch: int,
        folder: Path,
        clock: Clock,
        deadline_s: float,
        emit: Callable[[object], None],
        has_other_pins: Callable[[int], bool],
        set_mode: Callable[[str], None],
        kv: KvMode = KvMode.KEEP,
        synced: Callable[[int, float], None] = lambda version, seconds: None,
    ) -> None:
        """`has_other_pins(version)`: evaluation rollouts are open that need another version. `kv`: what
        the rollouts' cached keys become.

        `synced(version, seconds)` hears of each sync that is done.
        """
        self._engine = engine
        self._gate = gate
        self._blobs = blobs
        self._host_id = host_id
        self._epoch = epoch
        self._folder = folder
        self._clock = clock
        self._deadline_s = deadline_s
        self._emit = emit
        self._has_other_pins = has_other_pins
        self._set_mode = set_mode
        self._kv = kv
        self._synced = synced
        self._wanted: PolicyRef | None = None
        self._ordered = asyncio.Event()
        self._log = get_logger().bind(host_id=host_id, epoch=epoch)

    def order(self, policy: PolicyRef) -> None:
        """Want this policy; replaces an order that has not begun."""
        self._wanted = policy
        self._gate.aim(policy.version)
        self._ordered.set()

    async def run(self) -> None:
        """Serve orders for ever; ends by cancellation or EngineFault."""
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            policy, self._wanted = self._wanted, None
            if policy is not None:
                await self._serve(policy)

    async def bring(self, policy: PolicyRef) -> None:
        """Fetch, check, swap, probe. Raises SyncRefused or EngineFault."""
        info = self._engine.info()
        if (info.version, info.weights_sha) == (policy.version, policy.weights_sha):
            return
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._evaluation_ended(policy.version)
                ref, probe = await self._fetch(policy)
        except TimeoutError as error:
            cause = "evaluation_open" if self._has_other_pins(policy.version) else "deadline"
            raise SyncRefused(cause) from error
        except (OSError, PayloadUnreadable, MsgspecError) as error:
            raise SyncRefused(f"unreadable: {error}") from error
        await self._swap_in_time(ref, probe)

    async def _serve(self, policy: PolicyRef) -> None:
        self._set_mode("sync")
        since = self._clock.monotonic()
        try:
            await self.bring(policy)
        except SyncRefused as refused:
            self._log.warning("sync.failed", version=policy.version, cause=str(refused))
            self._emit(EngineSyncFailed(self._host_id, self._epoch, policy.version, str(refused)))
        else:
            self._log.info("sync.done", version=policy.version)
            self._synced(policy.version, self._clock.monotonic() - since)
            self._emit(EngineSynced(self._host_id, self._epoch, policy.version))
        finally:
            self._set_mode("decode")
            self._gate.aim(None if self._wanted is None else self._wanted.version)

    async def _evaluation_ended(self, version: int) -> None:
        while self._has_other_pins(version):
            await self._clock.sleep(EVALUATION_POLL_S)

    async def _fetch(self, policy: PolicyRef) -> tuple[WeightRef, Probe]:
        probe = from_json(await self._blobs.read(policy.probe_uri), Probe)
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.iterdir():
            old.unlink()
        path = self._folder / f"{policy.version:08d}-e{policy.trainer_epoch}.safetensors"
        checksum = hashlib.sha256()
        with path.open("wb") as file:
            async for part in self._blobs.stream(policy.uri):
                for start in range(0, len(part), CHUNK_BYTES):
                    failpoints.hit(seams.SYNC_CHUNK)
                    chunk = part[start : start + CHUNK_BYTES]
                    checksum.update(chunk)
                    file.write(chunk)
        ref = WeightRef(
            version=policy.version,
            kind=WeightKind.FILE,
            uri=str(path),
            sha=policy.weights_sha,
            checksum=checksum.hexdigest(),
            epoch=policy.trainer_epoch,
        )
        return ref, probe

    async def _swap_in_time(self, ref: WeightRef, probe: Probe) -> None:
        """The engine's part, never cancelled half-way: late is a fault of the engine."""
        work = asyncio.create_task(self._swap(ref, probe))
        try:
            await asyncio.wait({work}, timeout=self._deadline_s)
        except asyncio.CancelledError:
            work.cancel()
            raise
        if not work.done():
            work.cancel()
            raise EngineFault(f"the engine did not take weights within {self._deadline_s:g} s")
        work.result()

    async def _swap(self, ref: WeightRef, probe: Probe) -> None:
        engine, cause = self._engine, ""
        await engine.pause(PauseMode.KEEP, self._kv)
        try:
            await engine.update_weights(ref)
            report = await engine.verify_weights(probe)
            self._log.info(
                "sync.probed", version=report.version, max_abs_delta=report.max_abs_delta
            )
        except (EngineRefused, OSError) as error:
            cause = str(error) or type(error).__name__
        try:
            await engine.resume()
        except EngineRefused as refused:
            raise EngineFault(f"half-updated: {cause or refused}") from refused
        if cause:
            raise SyncRefused(cause)
