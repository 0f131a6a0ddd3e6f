"""Whether a node admits at all: memory pressure with hysteresis.

Pressure is the kernel's share of time in which some task waited for memory (PSI `some`, 10 s mean).
"""

from dataclasses import dataclass
from typing import Final

STOP_PRESSURE: Final = 0.05
"""From it on nothing is admitted."""

RESUME_PRESSURE: Final = 0.02
"""Calm is below it."""

CALM_S: Final = 30.0
"""So long it must stay calm before admission resumes, or a node would admit into its own recovery."""


@dataclass(slots=True)
class PressureGate:
    """Open until pressure stops it; open again after a whole stretch of calm."""

    is_open: bool = True
    pressure: float = 0.0
    _calm_since: float | None = None

    def sample(self, now: float, pressure: float) -> None:
        """A new sample; `now` in seconds of any clock that only goes forward."""
        self.pressure = pressure
        if pressure >= STOP_PRESSURE:
            self.is_open = False
        if pressure >= RESUME_PRESSURE:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now
        if self._calm_since is not None and now - self._calm_since >= CALM_S:
            self.is_open = True

    def stop(self) -> None:
        """The ladder's first rung: closed until a stretch of calm begins anew."""
        self.is_open = False
        self._calm_since = None
