"""The engine port: what the turn loop and the host ask of a rollout engine.

Adapters: `embedded` (torch, in this process) and `scripted` (replays given answers). Both pass the
contract suite in `tests/contract/engine/`. Methods are called from one asyncio loop; the engine may
run its own thread behind them.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from domain.engine import (
    EngineInfo,
    EngineStats,
    GenRequest,
    GenResult,
    KvMode,
    PauseMode,
    Probe,
    ProbeReport,
    RequestId,
    TokenChunk,
    WeightRef,
)
from domain.ids import RolloutId
from domain.kv_ticket import KvTicket


class Engine(Protocol):
    """A rollout engine. Expected refusals raise `EngineRefused`, failed updates `SyncFailed`."""

    def info(self) -> EngineInfo:
        """Model, weights in use, slots, pages and capabilities."""
        ...

    def stats(self) -> EngineStats:
        """Counters and gauges; `steps` is the progress that keepers watch."""
        ...

    def waiting(self) -> tuple[RolloutId, ...]:
        """Rollouts whose turn was accepted and has no slot yet."""
        ...

    async def generate(self, request: GenRequest) -> GenResult:
        """Generate one turn and return it whole. Cancelling the call aborts the request."""
        ...

    def stream(self, request: GenRequest) -> AsyncIterator[TokenChunk]:
        """Generate one turn piece by piece; closing the iterator aborts the request."""
        ...

    def set_rank(self, ranks: Mapping[RolloutId, int]) -> None:
        """Give open requests of these rollouts a new rank; unknown rollouts are ignored."""
        ...

    def retain(self, rollout_id: RolloutId, ttl_s: float) -> None:
        """Evict the rollout's cached keys after all others for `ttl_s` seconds."""
        ...

    def release(self, rollout_id: RolloutId) -> None:
        """Drop what is cached for the rollout: it will not come back."""
        ...

    async def export_kv(self, rollout_id: RolloutId) -> KvTicket:
        """Copy what is cached for a rollout between its turns to where another engine can read it.

        The copy lives until it is released or expires, whatever happens to the pages. Raises KvRefused.
        """
        ...

    async def abort(self, request_ids: Sequence[RequestId]) -> tuple[GenResult, ...]:
        """End these requests now and return what they had sampled; unknown ids are left out."""
        ...

    async def pause(self, mode: PauseMode, kv: KvMode = KvMode.KEEP) -> None:
        """Stop decoding at a step boundary; returns when it has stopped."""
        ...

    async def update_weights(self, ref: WeightRef) -> None:
        """Load and swap weights while paused; on failure the old ones stay and are served."""
        ...

    async def verify_weights(self, probe: Probe) -> ProbeReport:
        """Compare with the trainer's log-probabilities; a mismatch restores the old weights."""
        ...

    async def resume(self) -> None:
        """Decode again. Refused while weights are loaded but not verified."""
        ...

    async def close(self) -> None:
        """End open requests with `abort` and stop; may be called twice."""
        ...
