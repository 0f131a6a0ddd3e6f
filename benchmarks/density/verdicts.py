"""What became of a rollout, and how two runs of the same ones differ. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import comb
from typing import Final

Place = tuple[int, int]
"""A group's ordinal and the place in it."""

CONFIDENCE: Final = 0.95

HALVINGS: Final = 60
"""Of the interval that holds a limit: beyond a double's digits."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one rollout."""

    reward: float | None
    """None: not scored."""
    end: str
    cause: str
    timeouts: int
    """Commands that did not end in time."""
    tries: int
    saw: str
    """Digest of every reply that it got."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Few at a time against many at once."""

    pairs: int
    missing: tuple[Place, ...]
    """In one of the two alone."""
    flipped: tuple[Place, ...]
    """Of another reward, end or cause."""
    late: tuple[Place, ...]
    """More timeouts at full density."""
    again: tuple[Place, ...]
    """More tries at full density."""
    other_text: tuple[Place, ...]
    """Another reply, though the verdict is the same."""
    wrong: tuple[Place, ...]
    """At either density another reward than the script earns."""

    @property
    def flips_max(self) -> float:
        """Upper limit of the share of flips."""
        return upper_limit(len(self.flipped), self.pairs)


def compare(
    alone: Mapping[Place, Verdict], full: Mapping[Place, Verdict], earned: Mapping[Place, float]
) -> Comparison:
    """Pair them by place."""
    both = sorted(alone.keys() & full.keys())
    pairs = [(place, alone[place], full[place]) for place in both]
    return Comparison(
        len(both),
        tuple(sorted(alone.keys() ^ full.keys())),
        tuple(p for p, a, b in pairs if (a.reward, a.end, a.cause) != (b.reward, b.end, b.cause)),
        tuple(p for p, a, b in pairs if b.timeouts > a.timeouts),
        tuple(p for p, a, b in pairs if b.tries > a.tries),
        tuple(p for p, a, b in pairs if a.saw != b.saw),
        tuple(p for p, a, b in pairs if {a.reward, b.reward} != {earned[p]}),
    )


def upper_limit(hits: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided Clopper-Pearson limit of a share (Clopper and Pearson, Biometrika 1934)."""
    if hits >= trials:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        at_most = sum(
            comb(trials, k) * middle**k * (1 - middle) ** (trials - k) for k in range(hits + 1)
        )
        low, high = (middle, high) if at_most > 1 - confidence else (low, middle)
    return high
