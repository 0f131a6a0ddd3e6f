"""Weight updates of a running engine: read beside its thread, swapped in whole, then proven or undone.

While the engine is paused, `update` reads and checks a file and swaps it in between two decode steps;
`verify` decides: the probe holds, or the weights before the update are back. `weights.py` reads.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import torch

from domain.engine import Probe, ProbeReport, Refusal, SyncFailed, WeightKind, WeightRef
from infra.failpoints import hit
from workers.models.config import ModelConfig
from workers.rollout.embedded.packing import PackedModel
from workers.rollout.embedded.probe import compare
from workers.rollout.embedded.shelf import Key, LoadedAdapter
from workers.rollout.embedded.thread import EngineThread, Mode
from workers.rollout.embedded.weights import load_adapter, read_weights


@dataclass(frozen=True, slots=True)
class Served:
    """Weights that can be served again."""

    model: PackedModel
    version: int
    sha: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Unverified:
    """An update that no probe has confirmed: of the base (None) or of an adapter."""

    key: Key | None
    undo: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Packing:
    """What files are read for: their architecture, and where and how their numbers are kept."""

    config: ModelConfig
    device: torch.device
    dtype: torch.dtype


class WeightUpdates:
    """What one engine serves, and the one update of it that was not probed yet."""

    def __init__(self, thread: EngineThread, packing: Packing, epoch: int) -> None:
        self.epoch = epoch
        """Of the trainer that the base weights are from; older ones are refused."""
        self._thread = thread
        self._core = thread.core
        self._packing = packing
        self._unverified: Unverified | None = None

    @property
    def is_verified(self) -> bool:
        """Whether a probe has confirmed all that is served."""
        return self._unverified is None

    async def update(self, ref: WeightRef) -> None:
        """Load and swap weights while paused; on failure the old ones stay and are served."""
        try:
            if self._thread.mode is not Mode.PAUSED:
                raise SyncFailed(Refusal.NOT_PAUSED, "pause the engine before an update")
            swap = await asyncio.to_thread(self._read, ref)
            await self._thread.ask(swap)
        except SyncFailed:
            self._core.counters.sync_failures += 1
            raise

    async def verify(self, probe: Probe) -> ProbeReport:
        """Compare with the trainer's log-probabilities; a mismatch restores the old weights."""
        return await self._thread.ask(lambda: self._verify(probe))

    def _read(self, ref: WeightRef) -> Callable[[], None]:
        """Read and check beside the thread; what is returned serves it, between two steps."""
        newest = self._core.adapters.shelf.newest((ref.tenant, ref.adapter))
        is_adapter = ref.kind is WeightKind.LORA
        epoch = self.epoch if not is_adapter else ref.epoch if newest is None else newest.epoch
        if ref.epoch < epoch:
            raise SyncFailed(Refusal.OLD_EPOCH, f"epoch {ref.epoch} is older than {epoch}")
        config, device, dtype = self._packing.config, self._packing.device, self._packing.dtype
        try:
            hit("engine.sync.before_read")
            if is_adapter:
                adapter = load_adapter(ref, config, device, dtype)
            else:
                model = read_weights(ref, config, device, dtype)
            hit("engine.sync.after_read")
        except OSError as error:
            raise SyncFailed(Refusal.UNREADABLE, str(error)) from error
        if is_adapter:
            return lambda: self._swap_adapter(adapter)
        return lambda: self._swap(Served(model, ref.version, ref.sha, ref.epoch))

    def _swap(self, served: Served) -> None:
        core = self._core
        before = Served(core.model, core.version, core.weights_sha, self.epoch)
        self._begin(None, lambda: self._serve(before))
        self._serve(served)

    def _swap_adapter(self, adapter: LoadedAdapter) -> None:
        before = self._core.saved_adapters()
        self._begin(adapter.key, lambda: self._core.restore_adapters(before))
        self._core.swap_adapter(adapter)

    def _begin(self, key: Key | None, undo: Callable[[], None]) -> None:
        if self._thread.mode is not Mode.PAUSED:
            raise SyncFailed(Refusal.NOT_PAUSED, "the engine was resumed during the update")
        if self._unverified is None:
            self._unverified = Unverified(key, undo)
        elif self._unverified.key != key:
            raise SyncFailed(Refusal.UNVERIFIED, "another update was not probed yet")
        self._thread.rely()

    def _verify(self, probe: Probe) -> ProbeReport:
        unverified = self._unverified
        try:
            report = self._compare(probe, None if unverified is None else unverified.key)
        except SyncFailed:
            self._core.counters.sync_failures += 1
            if unverified is not None:
                unverified.undo()
                self._unverified = None
            raise
        if unverified is not None:
            self._core.counters.weight_updates += 1
        self._unverified = None
        return report

    def _compare(self, probe: Probe, key: Key | None) -> ProbeReport:
        core = self._core
        adapter = None if key is None else core.adapters.shelf.newest(key)
        try:
            if adapter is None:
                return compare(core.model, core.version, core.weights_sha, probe)
            return compare(core.model, adapter.version, adapter.sha, probe, adapter.packed)
        except SyncFailed:
            raise
        except Exception as error:
            # Whatever it was, nothing is proven: what was served before is served again.
            detail = f"the probe was not computed: {type(error).__name__}: {error}"
            raise SyncFailed(Refusal.PROBE_MISMATCH, detail) from error

    def _serve(self, served: Served) -> None:
        self._core.swap_weights(served.model, served.version, served.sha)
        self.epoch = served.epoch
