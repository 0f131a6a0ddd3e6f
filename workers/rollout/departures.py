"""Rollouts that leave this host with their pages, until whoever takes them has come.

    begin (the leader says so, or the target asks with the key of the placement)
      -> the rollout's task has stopped -> pages are copied -> the engine forgets the rollout
      -> ticket for the target -> released by it, or expired

Frozen once, whichever of the two comes first and however often: the copy and its ticket stay the same.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvRefused, KvTicket
from infra import failpoints
from infra.logging import get_logger
from workers.rollout import seams
from workers.rollout.kv_transfer.transfer import KvTransfer
from workers.rollout.ports import Engine

DEPARTURES_MAX: Final = 256
"""Remembered departures; copies end far sooner, and the oldest record is of one that has ended."""


@dataclass(frozen=True, slots=True)
class Departure:
    """The end of one placement; `outcome` is done once the pages are copied, or cannot be."""

    hop: int
    outcome: "asyncio.Task[KvTicket | KvRefused]"


class Departures:
    """Of one host. `is_back` says whether the rollout is placed here again: its keys then stay."""

    def __init__(
        self, engine: Engine, transfer: KvTransfer, is_back: Callable[[RolloutId], bool]
    ) -> None:
        self._engine = engine
        self._transfer = transfer
        self._is_back = is_back
        self._departures: dict[RolloutId, Departure] = {}
        self._log = get_logger()

    def begin(self, rollout_id: RolloutId, hop: int, stopped: Awaitable[object]) -> None:
        """Copy the pages once `stopped` is done: nothing of the rollout runs then."""
        outcome = asyncio.create_task(self._leave(rollout_id, stopped))
        self._departures.pop(rollout_id, None)
        self._departures[rollout_id] = Departure(hop, outcome)
        if len(self._departures) > DEPARTURES_MAX:
            del self._departures[next(iter(self._departures))]

    async def ticket(self, rollout_id: RolloutId, hop: int) -> KvTicket:
        """The ticket of the departure with this hop. Raises KvRefused."""
        departure = self._departures.get(rollout_id)
        if departure is None or departure.hop != hop:
            raise KvRefused(KvFailure.GONE, f"{rollout_id} did not leave with hop {hop}")
        outcome = await asyncio.shield(departure.outcome)
        if isinstance(outcome, KvRefused):
            raise outcome
        if self._transfer.find(rollout_id) != outcome:
            raise KvRefused(KvFailure.GONE, f"the pages of {rollout_id} are given back")
        return outcome

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [departure.outcome for departure in self._departures.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _leave(
        self, rollout_id: RolloutId, stopped: Awaitable[object]
    ) -> KvTicket | KvRefused:
        await asyncio.wait({asyncio.ensure_future(stopped)})
        try:
            ticket = await self._engine.export_kv(rollout_id)
        except KvRefused as refused:
            self._log.info("kv.not_exported", rollout_id=rollout_id, reason=refused.reason.value)
            return refused
        finally:
            if not self._is_back(rollout_id):
                self._engine.release(rollout_id)
        failpoints.hit(seams.EXPORTED)
        return ticket
