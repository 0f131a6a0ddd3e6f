"""Asks Postgres, at intervals, which held tries nobody owns any more. It destroys only those.

Silence of the leader or of a host never destroys anything: re-hosting an engine may take longer than
any idle limit. When Postgres is away, nothing is destroyed either.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from domain.errors import StoreUnavailable
from domain.ids import AttemptId
from infra.clock import Clock
from infra.logging import get_logger
from sandboxes.node.registry import TryKey

REAP_S: Final = 5.0
"""What was forgotten (a lost release frame) is gone within two of these; one query each."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """What belongs to a closed try, rollout or attempt, or to a paused job."""

    tries: tuple[TryKey, ...]
    attempts: tuple[AttemptId, ...]


class Ownership(Protocol):
    """What Postgres says about owners."""

    async def orphans(self, tries: Sequence[TryKey], attempts: Sequence[AttemptId]) -> Orphans:
        """Those of the given that have no owner. Raises StoreUnavailable."""
        ...


class Reaper:
    """`held` lists what is held now; `destroy` ends what has no owner."""

    def __init__(
        self,
        ownership: Ownership,
        clock: Clock,
        held: Callable[[], tuple[Sequence[TryKey], Sequence[AttemptId]]],
        destroy: Callable[[Orphans], Awaitable[None]],
    ) -> None:
        self._ownership = ownership
        self._clock = clock
        self._held = held
        self._destroy = destroy

    async def run(self) -> None:
        """Look for ever; ends only by cancellation."""
        while True:
            await self._clock.sleep(REAP_S)
            await self.look()

    async def look(self) -> None:
        """One look."""
        tries, attempts = self._held()
        if not tries and not attempts:
            return
        try:
            orphans = await self._ownership.orphans(tries, attempts)
        except StoreUnavailable as away:
            get_logger().warning("reaper.store_away", cause=str(away))
            return
        if orphans.tries or orphans.attempts:
            get_logger().info(
                "reaper.destroyed", tries=len(orphans.tries), attempts=len(orphans.attempts)
            )
            await self._destroy(orphans)
