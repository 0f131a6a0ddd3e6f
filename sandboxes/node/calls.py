"""Sandbox calls of one try: each key runs once, its result is kept until the turn is acknowledged.

A turn is acknowledged by the next turn's intent: the host has the observation then, and nobody can
ask for that turn's calls again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from venusrl.env.sandbox import CallKey, SandboxError, SandboxRequest, SandboxResult

CALLS_PER_TURN_MAX: Final = 1024
"""Kept results of one turn; user code that needs more is refused, visibly to it."""

Run = Callable[[SandboxRequest], Awaitable[SandboxResult]]


class CallLog:
    """The port through which an environment instance reaches its sandbox."""

    def __init__(self, run: Run) -> None:
        self.total = 0
        """Calls that were made, each key once."""
        self.run = run
        self._results: dict[tuple[int, int], asyncio.Future[SandboxResult]] = {}

    async def call(self, key: CallKey, request: SandboxRequest) -> SandboxResult:
        """Run one call, or hand out the result of that key again. Raises SandboxError."""
        known = self._results.get((key.turn, key.ordinal))
        if known is None:
            if len(self._results) >= CALLS_PER_TURN_MAX:
                raise SandboxError("refused", f"more than {CALLS_PER_TURN_MAX} calls in one turn")
            known = asyncio.ensure_future(self.run(request))
            self._results[key.turn, key.ordinal] = known
            self.total += 1
        # Shielded: a caller that is cancelled must not undo an effect that others may ask for.
        return await asyncio.shield(known)

    def acknowledge(self, turn: int) -> None:
        """Forget the results of this turn and of all before it."""
        for key in [key for key in self._results if key[0] <= turn]:
            result = self._results.pop(key)
            if result.done() and not result.cancelled():
                result.exception()  # nobody may ever have looked at it
