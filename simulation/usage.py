"""What machines were used for, from spans of time: one definition for recorded and simulated jobs.

A rollout holds its sandbox from the opening of its group to its own end, the last reply and the
upload included. An engine generates from a turn's admission to its last token; waiting for a slot is
none of it. Counted is the work of groups that were graded: what the job's end cut off is not recorded.
"""

from collections.abc import Iterable, Sequence

Span = tuple[float, float]
"""Begin and end, in seconds."""


def length(spans: Iterable[Span]) -> float:
    """Seconds of all spans together, those that overlap each for itself."""
    return sum(end - start for start, end in spans)


def union(spans: Iterable[Span]) -> float:
    """Seconds in which there was any of them."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def peak(spans: Sequence[Span]) -> int:
    """Most of them at one time; one that ends as another begins makes room for it."""
    moments = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    held = most = 0
    for _, change in moments:
        held += change
        most = max(most, held)
    return most
