"""How long a tool will still run, from its own history, and whether its pages are worth keeping.

A gap holds `share` of the device for its residual time. What that room would be worth to others is
`room_value`: the relative loss of decode throughput per share of the KV capacity. Pages are kept when
that is less than what bringing them back costs (`return_cost_s`).
"""

from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Final

REMEMBERED: Final = 256
"""Gaps of a tool that are remembered: enough for a tail of one in a hundred, and tools change."""

PRIOR_GAPS: Final = 8
"""Below so many gaps of a tool the history of all tools speaks for it."""

PREFILL_FACTOR: Final = 3.5
"""One return costs more than its own prefill: whoever used the room is pushed out again and comes back
as well, and the estimate of the gap is a mean over a long tail. Measured on the benchmark's mid cells."""

RELOAD_FACTOR: Final = 1.75
"""A return from an outer tier costs less than so many prefills of as long: the link brings it while the
engine decodes. Measured on the benchmark's mid and high cells with a host tier, seeds beyond its own."""

UNKNOWN_RESIDUAL_FACTOR: Final = 1.0
"""A gap longer than all remembered ones is expected to last as long again (Lindy's rule)."""


@dataclass(slots=True)
class Gaps:
    """The last gaps of one tool, in the order of time and of length."""

    recent: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        """A gap ended."""
        self.recent.append(seconds)
        insort(self.ordered, seconds)
        if len(self.recent) > REMEMBERED:
            del self.ordered[bisect_right(self.ordered, self.recent.popleft()) - 1]

    def residual_s(self, elapsed_s: float) -> float:
        """Mean residual life: how much longer a gap that has lasted `elapsed_s` lasts on average."""
        first = bisect_right(self.ordered, elapsed_s)
        longer = self.ordered[first:]
        if not longer:
            return UNKNOWN_RESIDUAL_FACTOR * elapsed_s
        return sum(longer) / len(longer) - elapsed_s


@dataclass(slots=True)
class GapHistory:
    """Gaps by tool kind; an unknown kind is judged by all."""

    by_kind: dict[str, Gaps] = field(default_factory=dict)
    every: Gaps = field(default_factory=Gaps)

    def add(self, kind: str, seconds: float) -> None:
        """A gap of this kind ended after so many seconds."""
        self.by_kind.setdefault(kind, Gaps()).add(seconds)
        self.every.add(seconds)

    def residual_s(self, kind: str, elapsed_s: float) -> float:
        """Expected seconds until the tool answers; 0 when nothing is known at all."""
        gaps = self.by_kind.get(kind)
        if gaps is None or len(gaps.ordered) < PRIOR_GAPS:
            gaps = self.every
        return gaps.residual_s(elapsed_s) if gaps.ordered else 0.0


def room_value(floor_s: float, full_step_s: float, active_share: float) -> float:
    """What one more share of the device in use adds, in shares of an engine that is full.

    A step over a share k of the device costs F + k x C (F the step's floor, C the read of a full
    device) and samples in proportion to k, so the rate is k / (F + k x C). Its slope over the rate
    at k = 1 is F x (F + C) / (F + k x C)^2: small on a full device, large on one that idles. Without a
    floor the rate is 1 / C whatever is in use: more room is worth nothing.
    """
    if floor_s <= 0.0:
        return 0.0
    step_s = floor_s + active_share * (full_step_s - floor_s)
    return floor_s * full_step_s / (step_s * step_s)


def return_cost_s(compute_s: float, reload_s: float | None) -> float:
    """What bringing pages back costs, the cheaper way, in engine seconds.

    `compute_s` are those of a re-prefill, `reload_s` the link's seconds; None where no tier keeps them.
    """
    if reload_s is None or reload_s >= compute_s:
        return PREFILL_FACTOR * compute_s
    return RELOAD_FACTOR * reload_s


def is_worth_keeping(residual_s: float, share: float, value: float, cost_s: float) -> bool:
    """Whether pages stay through a gap: the room's worth to others is below the cost of returning.

    `share` is the part of the device that they hold, `cost_s` what `return_cost_s` says.
    """
    return residual_s * share * value <= cost_s
