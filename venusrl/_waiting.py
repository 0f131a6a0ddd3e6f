"""Waiting by polling, on a clock that tests replace."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from venusrl._wires import Sleep

POLL_FIRST_S: Final = 0.1
POLL_MAX_S: Final = 2.0
"""Polls grow from the first to this pause: short things answer at once, long ones cost little."""

POLL_GROWTH: Final = 1.5


@dataclass(frozen=True, slots=True)
class Waiting:
    """A clock and a sleep; without a sleep that of the client."""

    clock: Callable[[], float] = time.monotonic
    sleep: Sleep | None = None

    def pauses(self, timeout_s: float | None) -> Iterator[float]:
        """Seconds before each poll: the first at once, the last at the deadline; None: for ever."""
        end = None if timeout_s is None else self.clock() + timeout_s
        yield 0.0
        pause = POLL_FIRST_S
        for _ in itertools.count():
            left = pause if end is None else end - self.clock()
            if left <= 0:
                return
            yield min(pause, left)
            pause = min(POLL_MAX_S, pause * POLL_GROWTH)
