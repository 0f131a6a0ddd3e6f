"""A rollout's next turn on another engine: its pages moved there, or its context computed anew.

From the decision to the first token of the turn at the target. The pages go the way that hosts use: the
target asks the source's door, the source's engine copies them out, and they come as shared memory or over
HTTP in checked ranges. Both engines and both doors are in this process and on one core, so that export,
transfer and checks are never hidden behind each other.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.engine.figures import Spread, ratios, spread
from benchmarks.engine.models import build
from benchmarks.engine.rate import one_core
from benchmarks.engine.workload import TOKENS
from domain.engine import GenRequest, GenResult, RequestId, Sampling
from domain.ids import GroupId, RolloutId
from domain.kv_ticket import KvTicket
from domain.wire import KvSource
from infra.kv_access import ACCESS_S, access_key
from workers.models.config import ModelConfig
from workers.models.folder import ModelFolder
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits
from workers.rollout.kv_transfer.door import KvDoor
from workers.rollout.kv_transfer.fetcher import KvFetcher
from workers.rollout.kv_transfer.transfer import KvTransfer

CONTEXTS: Final = (256, 1024, 3500)

REPEATS: Final = 5

ANSWER: Final = 16
"""Tokens that the turn at the source samples: its last keys are made by decoding, as in a real one."""

OBSERVATION: Final = 16
"""Tokens that come before the turn at the target: what every way must compute."""

HOP: Final = 1
ELSEWHERE: Final = "elsewhere"
"""A name that this machine does not have: pages then travel over HTTP."""

PREFILL: Final = "prefill"
MEMORY: Final = "shared memory"
HTTP: Final = "http"
WAYS: Final = (PREFILL, MEMORY, HTTP)


@dataclass(frozen=True, slots=True)
class MoveFigures:
    """One context length; milliseconds to the first token, and how many times as long a prefill takes."""

    model: str
    context: int
    moved_bytes: int
    prefill_ms: Spread
    memory_ms: Spread
    http_ms: Spread
    memory_gain: Spread
    http_gain: Spread


class Pair:
    """A source and a target of the same model."""

    def __init__(
        self, source: EmbeddedEngine, target: EmbeddedEngine, transfer: KvTransfer
    ) -> None:
        self.source = source
        self.target = target
        self.leaving = transfer
        self.door = KvDoor(transfer, self._depart)
        self.fetchers: dict[str, KvFetcher] = {}
        self.bytes = 0
        self._made = 0

    async def _depart(self, rollout_id: RolloutId, hop: int) -> KvTicket:
        del hop
        found = self.leaving.find(rollout_id)
        return await self.source.export_kv(rollout_id) if found is None else found

    async def seconds(self, way: str, context: int) -> float:
        """A rollout of its own, one turn at the source; then the first token at the target."""
        self._made += 1
        chance = Random(self._made)
        name = RolloutId(f"move.{self._made}")
        prompt = tuple(chance.randrange(TOKENS) for _ in range(context - ANSWER))
        first = await self.source.generate(_request(name, "here", prompt, ANSWER))
        tool = tuple(chance.randrange(TOKENS) for _ in range(OBSERVATION))
        request = _request(name, "there", (*prompt, *first.token_ids, *tool), 1)
        began = time.perf_counter()
        result, ticket = await self._next_turn(way, request)
        seconds = time.perf_counter() - began
        # A way that quietly became a prefill would be measured as what it is not.
        assert result.cached_tokens == (0 if ticket is None else ticket.tokens), result
        self.bytes = self.bytes if ticket is None else ticket.size
        self.source.release(name)
        self.target.release(name)
        return seconds

    async def _next_turn(self, way: str, request: GenRequest) -> tuple[GenResult, KvTicket | None]:
        if way == PREFILL:
            return await self.target.generate(request), None
        expires = int(time.time() + ACCESS_S)
        key = access_key(self.door.key, request.rollout_id, HOP, expires)
        source = KvSource(self.door.address, HOP, expires, key)
        fetched = await self.fetchers[way].fetch(request.rollout_id, source)
        try:
            asked = replace(request, kv_source=fetched.ticket)
            return await self.target.generate(asked), fetched.ticket
        finally:
            fetched.close()


def measure(
    name: str,
    config: ModelConfig,
    folder: Path,
    *,
    contexts: tuple[int, ...] = CONTEXTS,
    repeats: int = REPEATS,
) -> list[MoveFigures]:
    """All context lengths; the ways take turns."""
    with one_core():
        return asyncio.run(_measure(name, build(config, folder), contexts, repeats))


async def _measure(
    name: str, folder: ModelFolder, contexts: tuple[int, ...], repeats: int
) -> list[MoveFigures]:
    found = []
    async with _pair(name, folder) as pair:
        for way in WAYS:
            await pair.seconds(way, min(contexts))
        for context in contexts:
            times: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(repeats):
                for way in WAYS:
                    times[way].append(1e3 * await pair.seconds(way, context))
            found.append(_figures(name, context, pair.bytes, times))
    return found


@asynccontextmanager
async def _pair(name: str, folder: ModelFolder) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        engines, transfers = [], []
        for _ in range(2):
            transfer = KvTransfer(time.time)
            engine = EmbeddedEngine(name, folder, EngineLimits(slots=2), transfer=transfer)
            stack.callback(transfer.close)
            stack.push_async_callback(engine.close)
            engines.append(engine)
            transfers.append(transfer)
        pair = Pair(engines[0], engines[1], transfers[0])
        pair.fetchers = {
            MEMORY: KvFetcher(transfers[1]),
            HTTP: KvFetcher(transfers[1], here=ELSEWHERE),
        }
        for fetcher in pair.fetchers.values():
            stack.push_async_callback(fetcher.close)
        serving = asyncio.create_task(pair.door.run())
        yield pair
        await pair.door.close()
        await serving


def _request(name: RolloutId, where: str, tokens: tuple[int, ...], output: int) -> GenRequest:
    return GenRequest(
        request_id=RequestId(f"{name}.{where}"),
        rollout_id=name,
        group_id=GroupId(name),
        tenant="bench",
        token_ids=tokens,
        sampling=Sampling(output, temperature=0.0),
    )


def _figures(name: str, context: int, size: int, times: dict[str, list[float]]) -> MoveFigures:
    return MoveFigures(
        model=name,
        context=context,
        moved_bytes=size,
        prefill_ms=spread(times[PREFILL]),
        memory_ms=spread(times[MEMORY]),
        http_ms=spread(times[HTTP]),
        memory_gain=ratios(times[PREFILL], times[MEMORY]),
        http_gain=ratios(times[PREFILL], times[HTTP]),
    )
