"""What rollouts waited for, as it was, by the load that it was seen under."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from simulation.fitting import Row, fit_relative
from simulation.rates import Crowd, Crowds, Waits
from simulation.recorded import RecordedJob, level_of
from simulation.recorded_engine import spans_of

QUIET: Final = 0.25
"""Quantile of waits that is taken as their length without queueing; the simulator queues by itself."""


def waits_of(job: RecordedJob) -> dict[tuple[int, int], Waits]:
    """Waits of each rollout by (ordinal, place in its group), with the rollouts then in flight.

    Where all slots of a host were taken, waits hold queueing, which the simulator adds by itself:
    then the quiet quarter of all rollouts speaks for each of them.
    """
    crowd = _crowding(job)
    found = {
        (group.ordinal, place): Waits(
            place_s=max(one.placed_s - group.opened_s, 0.0) + one.overhead_s,
            turn_s=one.overhead_s,
            close_s=one.overhead_s + one.turns[-1].tool_s,
            crowd=crowd.mean(one.placed_s, one.ended_s),
            place_crowd=crowd.mean(group.opened_s, one.placed_s + one.overhead_s),
        )
        for group in job.groups
        for place, one in enumerate(group.rollouts)
        if one.turns
    }
    if not found or not _is_saturated(job):
        return found
    quiet = Waits(
        place_s=level_of([one.place_s for one in found.values()], QUIET),
        turn_s=level_of([one.turn_s for one in found.values()], QUIET),
        close_s=level_of([one.close_s for one in found.values()], QUIET),
    )
    return dict.fromkeys(found, quiet)


def crowds_of(
    job: RecordedJob,
    waits: Mapping[tuple[int, int], Waits],
    grade_crowds: Mapping[int, float],
) -> Crowds:
    """How waits grew with the rollouts in flight meanwhile: a line through all of them, never falling.

    `waits` are those of `waits_of`, `grade_crowds` those of `grade_crowds_of`.
    """
    grades = [
        (grade_crowds[group.ordinal], group.graded_s - group.closed_s) for group in job.groups
    ]
    return Crowds(
        place=_line([(one.place_crowd, one.place_s) for one in waits.values()]),
        turn=_line([(one.crowd, one.turn_s) for one in waits.values()]),
        grade=_line(grades),
        tool=_line(
            [
                (waits[group.ordinal, place].crowd, turn.tool_s)
                for group in job.groups
                for place, one in enumerate(group.rollouts)
                for turn in one.turns[:-1]
            ]
        ),
    )


def grade_crowds_of(job: RecordedJob) -> dict[int, float]:
    """Rollouts in flight while each group was graded, by ordinal. Its own have ended by then."""
    crowd = _crowding(job)
    return {group.ordinal: crowd.mean(group.closed_s, group.graded_s) for group in job.groups}


def _line(points: Sequence[tuple[float, float]]) -> Crowd:
    rows = [Row((1.0, crowd), max(wait, 0.0), 1.0) for crowd, wait in points]
    base, slope = fit_relative(rows, 2) if rows else (1.0, 0.0)
    return Crowd(base, slope)


def _is_saturated(job: RecordedJob) -> bool:
    """Whether so many generated at once on a host that others must have waited for a slot."""
    spans = [span for group in job.groups for span in spans_of(group)]
    moments = sorted(
        [(span.start_s, 1, span.host) for span in spans]
        + [(span.end_s, -1, span.host) for span in spans]
    )
    active: dict[str, int] = {}
    for _, change, host in moments:
        active[host] = active.get(host, 0) + change
        if active[host] >= job.slots:
            return True
    return False


def _crowding(job: RecordedJob) -> "_Crowding":
    """Of all its rollouts: from their group's opening on they have a sandbox or wait for one."""
    return _Crowding([(g.opened_s, one.ended_s) for g in job.groups for one in g.rollouts])


class _Crowding:
    """Rollouts in flight over time, as an integral that any stretch can be read from."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        moments = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
        self._times: list[float] = []
        self._areas: list[float] = []
        self._counts: list[int] = []
        area, count = 0.0, 0
        for now, change in moments:
            area += count * (now - self._times[-1]) if self._times else 0.0
            count += change
            self._times.append(now)
            self._areas.append(area)
            self._counts.append(count)

    def mean(self, start: float, end: float) -> float:
        """Of a stretch."""
        if end <= start:
            return float(self._counts[bisect_right(self._times, start) - 1])
        return (self._area(end) - self._area(start)) / (end - start)

    def _area(self, now: float) -> float:
        place = bisect_right(self._times, now) - 1
        if place < 0:
            return 0.0
        return self._areas[place] + self._counts[place] * (now - self._times[place])
