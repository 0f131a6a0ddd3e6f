"""Virtual time: a heap of things to do, in the order of their times and then of their making."""

from collections.abc import Callable
from heapq import heappop, heappush

Callback = Callable[[], None]


class VirtualClock:
    """Runs callbacks in order; equal times run in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._made = 0
        self._due: list[tuple[float, int, Callback]] = []

    def at(self, when: float, act: Callback) -> None:
        """Do something at a time that is not past."""
        self._made += 1
        heappush(self._due, (max(when, self.now), self._made, act))

    def after(self, seconds: float, act: Callback) -> None:
        """Do something after some seconds."""
        self.at(self.now + seconds, act)

    def run_next(self) -> bool:
        """Run the next callback; False when there is none."""
        if not self._due:
            return False
        self.now, _, act = heappop(self._due)
        act()
        return True
