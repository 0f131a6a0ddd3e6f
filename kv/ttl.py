"""How long to pin the pages of a rollout whose tool runs: Continuum's time to live.

Source: Continuum / CacheTTL (arXiv 2511.02230): a pin is worth what its loss would cost, reloading the
prefix and queueing again for a place, weighed against the time for which the pages keep others out, by
the measured distribution of the tool's times. The paper's exact expression was not at hand; this is the
rule that its parts give:

    benefit(t) = P(gap <= t) x (reload_s + queue_wait_s) - E[min(gap, t)]

A pin costs a second for each second that it is held, and earns only when the tool returns within it. The
best t is 0 or one of the observed gaps, since between two of them only the cost rises. The released
prototype pins for 2 s, and not at all where the mean of the tool is longer; without history that is
what remains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

UNKNOWN_TTL_S: Final = 2.0
"""Pin of a tool without history; the prototype's fixed one."""

TTL_MAX_S: Final = 600.0
"""No pin is longer: a tool that hangs would hold its pages for ever."""


@dataclass(frozen=True, slots=True)
class TtlLimits:
    """What bounds a time to live."""

    unknown_s: float = UNKNOWN_TTL_S
    max_s: float = TTL_MAX_S


GAPS_MAX: Final = 64
"""Observed gaps of one tool that are weighed, newest last; older ones came from another workload."""


DEFAULT_LIMITS: Final = TtlLimits()
"""Those of a job that sets no knob."""


def ttl_s(
    gaps: Sequence[float],
    reload_s: float,
    queue_wait_s: float,
    limits: TtlLimits = DEFAULT_LIMITS,
) -> float:
    """Seconds for which the pages stay pinned; 0 where giving them up costs less than keeping them.

    `gaps` are the last measured seconds of this tool, `reload_s` what it takes to bring the prefix back
    (by link or by prefill), `queue_wait_s` what a turn that lost its pages waits for a place.
    """
    if not gaps:
        return min(limits.unknown_s, limits.max_s)
    seen = sorted(gaps[-GAPS_MAX:])
    worth_s = reload_s + queue_wait_s
    best_s, best_benefit, passed_s = 0.0, 0.0, 0.0
    for count, gap in enumerate(seen, start=1):
        passed_s += gap
        held_s = (passed_s + gap * (len(seen) - count)) / len(seen)
        benefit = count / len(seen) * worth_s - held_s
        if benefit > best_benefit and gap <= limits.max_s:
            best_s, best_benefit = gap, benefit
    return best_s
