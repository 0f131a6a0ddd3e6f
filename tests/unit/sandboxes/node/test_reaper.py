"""The reaper asks at intervals and destroys only what Postgres disowns."""

import asyncio
from collections.abc import Sequence

from domain.errors import StoreUnavailable
from domain.ids import AttemptId, RolloutId
from infra.clock import ManualClock
from sandboxes.node.reaper import REAP_S, Orphans, Reaper
from sandboxes.node.registry import TryKey
from tests.support.waiting import eventually

HELD = [TryKey(RolloutId("ro_a_000000000_000"), 1), TryKey(RolloutId("ro_a_000000000_001"), 1)]
ATTEMPTS = [AttemptId("att_a")]


class Owners:
    """Postgres as the test wants it."""

    def __init__(self) -> None:
        self.answer = Orphans((), ())
        self.is_away = False
        self.asked = 0

    async def orphans(self, tries: Sequence[TryKey], attempts: Sequence[AttemptId]) -> Orphans:
        self.asked += 1
        if self.is_away:
            raise StoreUnavailable("away")
        return self.answer


async def test_it_looks_once_an_interval_and_destroys_what_is_disowned(clock: ManualClock) -> None:
    owners, destroyed = Owners(), []

    async def destroy(orphans: Orphans) -> None:
        destroyed.append(orphans)

    reaper = Reaper(owners, clock, lambda: (HELD, ATTEMPTS), destroy)
    running = asyncio.create_task(reaper.run())
    await asyncio.sleep(0)
    clock.advance(REAP_S - 0.1)
    await asyncio.sleep(0)
    assert owners.asked == 0
    owners.answer = Orphans((HELD[1],), ())
    clock.advance(0.1)
    await eventually(lambda: destroyed == [Orphans((HELD[1],), ())])
    running.cancel()


async def test_nothing_is_destroyed_while_postgres_is_away(clock: ManualClock) -> None:
    owners = Owners()
    owners.is_away, owners.answer = True, Orphans(tuple(HELD), ())

    async def destroy(orphans: Orphans) -> None:
        raise AssertionError("nothing is known")

    await Reaper(owners, clock, lambda: (HELD, ATTEMPTS), destroy).look()
    assert owners.asked == 1


async def test_a_node_that_holds_nothing_asks_nothing(clock: ManualClock) -> None:
    owners = Owners()

    async def destroy(orphans: Orphans) -> None:
        raise AssertionError("nothing is held")

    await Reaper(owners, clock, lambda: ([], []), destroy).look()
    assert owners.asked == 0
