"""What a host tells the leader of its rollouts' turns: at once when it was quiet, else gathered.

    turn events -> newest of each kind per rollout -> one frame every REPORT_EVERY_S at most

Turn events are advisory, so an older one that a newer one replaces is dropped: a host of n rollouts
tells at most 2 n events a frame, however short its turns are. What counts (a close, a failed try) goes
past here, after what is kept back of the same rollout.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from domain.events import TurnFinished, TurnSampled
from domain.ids import RolloutId
from domain.wire import TurnReports
from infra.clock import Clock

REPORT_EVERY_S: Final = 0.1
"""Ten frames a second and host: early enough for tools of a second, where moving a rollout may pay, and
one rollout with turns of a millisecond costs the leader no more than one with turns of 0.1 s."""

REPORT_ROLLOUTS_MAX: Final = 512
"""Rollouts in one frame: what the leader folds in before it looks at anything else. The rest follow with
the next frame, those first that have waited longest."""


class TurnReporter:
    """Gathers turn events; `emit` sends a frame, or drops it while nobody leads."""

    def __init__(self, clock: Clock, emit: Callable[[object], None]) -> None:
        self._clock = clock
        self._emit = emit
        self._finished: dict[RolloutId, TurnFinished] = {}
        self._sampled: dict[RolloutId, TurnSampled] = {}
        self._order: dict[RolloutId, None] = {}
        self._quiet_until = 0.0
        self._timer: asyncio.Task[None] | None = None
        self.merged = 0
        """Events that a newer one of the same rollout replaced."""

    def add(self, event: TurnSampled | TurnFinished) -> None:
        """Take one event; never waits."""
        rollout = event.rollout_id
        former = self._sampled.pop(rollout, None)
        if isinstance(event, TurnFinished):
            self.merged += (former is not None) + (rollout in self._finished)
            self._finished[rollout] = event
        else:
            self.merged += former is not None
            self._sampled[rollout] = event
        self._order.setdefault(rollout)
        if self._timer is None:
            self._timer = asyncio.create_task(self._later())

    def settle(self, rollout_id: RolloutId) -> None:
        """Tell what is kept back of this rollout before its end is told."""
        if rollout_id in self._order:
            self._tell([rollout_id])

    def drop(self, rollout_id: RolloutId) -> None:
        """The rollout is no longer this host's: what is kept back would be refused."""
        self._take(rollout_id)

    async def close(self) -> None:
        """Stop; what is kept back is lost, which costs nothing."""
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.gather(self._timer, return_exceptions=True)

    async def _later(self) -> None:
        """Tell until nothing is kept back."""
        while self._order:
            await self._clock.sleep(max(self._quiet_until - self._clock.monotonic(), 0.0))
            self._quiet_until = self._clock.monotonic() + REPORT_EVERY_S
            self._tell(list(self._order)[:REPORT_ROLLOUTS_MAX])
        self._timer = None

    def _tell(self, rollouts: list[RolloutId]) -> None:
        finished, sampled = [], []
        for rollout in rollouts:
            ended, opened = self._take(rollout)
            finished += [] if ended is None else [ended]
            sampled += [] if opened is None else [opened]
        if finished or sampled:
            self._emit(TurnReports(tuple(finished), tuple(sampled)))

    def _take(self, rollout: RolloutId) -> tuple[TurnFinished | None, TurnSampled | None]:
        self._order.pop(rollout, None)
        return self._finished.pop(rollout, None), self._sampled.pop(rollout, None)
