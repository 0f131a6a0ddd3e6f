"""The loop of one delivering process: claim what is due, send it, mark it, until nothing is due.

What is under way is bounded, and of one webhook more tightly, so that a slow receiver takes no place
from the others and a long backlog takes no memory.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infra import failpoints, signatures
from infra.clock import Clock
from infra.logging import get_logger
from infra.settings import Webhooks
from stores.system import deliveries
from stores.system.deliveries import Claimed, Failure
from stores.unit_of_work import Database
from workers.webhooks.sender import OK, UNTRIED, Outcome, Sender

UNDER_WAY_MAX: Final = 32
"""Deliveries of one process at a time."""

OF_ONE_WEBHOOK_MAX: Final = 8
"""A receiver gets no more requests at a time, over all processes."""

CLAIM_MARGIN_S: Final = 20.0
"""Between a try's time limit and the end of its claim: marking it takes a moment."""

RUN_S: Final = 40.0
"""A process claims nothing more after it and ends; the leader wakes the next one."""

POLL_S: Final = 0.5
"""While some are under way: how late a delivery that has become due is seen."""

DAY_S: Final = 86_400.0

SENT: Final = "webhook.sent"
"""Failpoint after a receiver has answered and before that is marked."""


@dataclass(frozen=True, slots=True)
class Delivering:
    """What the loop needs of the outside. `chance` is uniform in [0, 1)."""

    database: Database
    sender: Sender
    settings: Webhooks
    clock: Clock
    chance: Callable[[], float] = random.random

    async def run(self, run_s: float = RUN_S) -> int:
        """Deliver until nothing is due, or for so long; how many tries were made."""
        end = self.clock.monotonic() + run_s
        under_way: set[asyncio.Task[None]] = set()
        tries = 0
        async with asyncio.TaskGroup() as group:
            while True:
                claimed = []
                if self.clock.monotonic() < end and len(under_way) <= UNDER_WAY_MAX // 2:
                    claimed = await self._claim(UNDER_WAY_MAX - len(under_way))
                tries += len(claimed)
                under_way |= {group.create_task(self._deliver(one)) for one in claimed}
                if not under_way:
                    return tries
                _, under_way = await asyncio.wait(
                    under_way, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
                )

    async def _claim(self, count: int) -> list[Claimed]:
        claim_s = self.settings.timeout_s + CLAIM_MARGIN_S
        async with self.database.begin() as connection:
            return await deliveries.claim(connection, count, OF_ONE_WEBHOOK_MAX, claim_s)

    async def _deliver(self, one: Claimed) -> None:
        at, start = self.clock.now(), self.clock.monotonic()
        outcome = await self._try(one)
        attempt = {
            "at": at.isoformat(),
            "code": outcome.code,
            "status": outcome.status,
            "seconds": round(self.clock.monotonic() - start, 3),
            "response": outcome.response,
        }
        failpoints.hit(SENT)
        log = get_logger().bind(webhook_id=one.webhook_id, delivery_id=one.id, tries=one.tries)
        async with self.database.begin() as connection:
            if outcome.code == OK:
                await deliveries.mark_delivered(connection, one, attempt)
                return
            failure = self._failure(one, outcome, attempt)
            is_disabled = await deliveries.mark_failed(connection, one, failure)
        log.info("webhook.failed", code=outcome.code, status=outcome.status)
        if is_disabled:
            log.warning("webhook.disabled")

    async def _try(self, one: Claimed) -> Outcome:
        if one.tries > self.settings.tries:
            return Outcome("sender_died")
        return await self.sender.send(one)

    def _failure(self, one: Claimed, outcome: Outcome, attempt: dict[str, Any]) -> Failure:
        is_last = one.tries >= self.settings.tries or outcome.code in UNTRIED
        pause = signatures.retry_pause_s(one.tries, self.settings.retry_s, self.chance())
        return Failure(
            attempt=attempt,
            again_in_s=None if is_last else pause,
            disable_after_s=self.settings.disable_days * DAY_S,
        )
