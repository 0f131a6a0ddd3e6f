"""What a sandbox of a template will hold: peaks of private bytes by turn, per (tenant, template).

Turns are gathered into phases that double in length. What counts for a sandbox is all turns from its
phase on, later ones included: a fresh clone will grow to what its later turns need.

Before there is evidence the declared ceiling speaks, a quarter of it as the mean and as much again as
deviation. Evidence counts in rollouts and, because members of a group run the same tests and so say
nearly the same, in groups: twenty rollouts of two tasks are two samples.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from sandboxes.core.histogram import DecayingHistogram

PRIOR_SHARE: Final = 0.25
"""Of the declared ceiling: expected private bytes before there is evidence."""

ROLLOUTS_MIN: Final = 20
"""After so many ended rollouts the prior is out."""

GROUPS_MIN: Final = 5
"""And so many groups that they came from."""

PHASES: Final = 7
"""Turns 0, 1, 2-3, 4-7, 8-15, 16-31, 32 and later."""

HALF_LIFE: Final = 4_000
"""Turns of a phase: some hundred rollouts, so that a changed template is noticed within a day."""

PHASE_SAMPLES_MIN: Final = 20
"""A phase with fewer turns does not speak: the longest rollouts alone would."""

RESERVE_LEVEL: Final = 0.99
"""Quantile of a turn's peak that one group of the node is held room for."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one sandbox in some phase. Bytes, private."""

    expected_bytes: float
    deviation_bytes: float
    reserve_bytes: float
    """The peak that one in a hundred turns exceeds."""
    ceiling_bytes: float
    """Hard limit: whatever is expected, it holds no more."""


@dataclass(slots=True)
class _Phase:
    peaks: DecayingHistogram = field(default_factory=lambda: DecayingHistogram(HALF_LIFE))
    samples: int = 0


def phase_of(turn: int) -> int:
    """The phase of a turn, 0 while it boots."""
    return min(PHASES - 1, turn.bit_length())


@dataclass(slots=True)
class GrowthModel:
    """One (tenant, template). `ceiling_bytes` is the declared one, a hard limit of each sandbox."""

    ceiling_bytes: int
    rollouts: int = 0
    groups: int = 0
    _phases: list[_Phase] = field(default_factory=lambda: [_Phase() for _ in range(PHASES)])
    _known: dict[int, Growth] = field(default_factory=dict)

    def turn_ended(self, turn: int, peak_bytes: int) -> None:
        """A turn's peak of private bytes, tool included."""
        phase = self._phases[phase_of(turn)]
        phase.peaks.add(peak_bytes)
        phase.samples += 1
        self._known.clear()

    def rollout_ended(self, is_last_of_group: bool) -> None:
        """Evidence is counted once a rollout is over."""
        self.rollouts += 1
        self.groups += is_last_of_group
        self._known.clear()

    @property
    def evidence(self) -> float:
        """From 0, nothing seen, to 1, the prior is out."""
        return min(1.0, self.rollouts / ROLLOUTS_MIN, self.groups / GROUPS_MIN)

    def growth(self, turn: int) -> Growth:
        """What a sandbox at this turn is expected to hold from now on."""
        phase = phase_of(turn)
        if phase not in self._known:
            self._known[phase] = self._growth(phase)
        return self._known[phase]

    def _growth(self, phase: int) -> Growth:
        prior = PRIOR_SHARE * self.ceiling_bytes
        able = [one.peaks for one in self._phases[phase:] if one.samples >= PHASE_SAMPLES_MIN]
        if not able:
            able = [one.peaks for one in self._phases if one.samples >= PHASE_SAMPLES_MIN]
        share = self.evidence if able else 0.0
        total = sum(one.weight for one in able) or 1.0
        mean = sum(one.weight * one.mean for one in able) / total
        square = sum(one.weight * (one.deviation**2 + one.mean**2) for one in able) / total
        spread = math.sqrt(max(0.0, square - mean**2))
        high = max((one.quantile(RESERVE_LEVEL) for one in able), default=0.0)
        return Growth(
            expected_bytes=share * mean + (1 - share) * prior,
            deviation_bytes=share * spread + (1 - share) * prior,
            reserve_bytes=min(float(self.ceiling_bytes), share * high + (1 - share) * 2 * prior),
            ceiling_bytes=float(self.ceiling_bytes),
        )
