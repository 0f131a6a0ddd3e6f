"""A recorded job as trajectories and as cost models: rows in, figures out, nothing read elsewhere.

    placements, turns -> who generated beside whom -> least squares -> EngineRates
    steps, trained tokens, updates                 -> ratio          -> TrainerRates
    openings, placements, verdicts                 -> as they were, by the load they were seen under

Each fit can be repeated on a resample of groups or steps: that is the forecast's parameter
uncertainty. Generation seconds exclude queueing (the engine measures them from its admission on).
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from domain.advantage import ZERO_VARIANCE_TOLERANCE
from simulation.fitting import Row, fit_relative, log_spread
from simulation.rates import Crowd, Crowds, EngineRates, TrainerRates, Waits
from simulation.summary import quantile
from simulation.workload.trajectory import Tool, Trajectory, Turn

QUIET: Final = 0.25
"""Quantile of waits that is taken as their length without queueing; the simulator queues by itself."""

LEAST_SECONDS: Final = 1e-4
"""Turns shorter than a clock can tell apart count as this, so that no relative error is infinite."""

TURNS_MIN: Final = 8
"""Generated turns that a fit of three coefficients needs at the least."""


class NotEnoughRecorded(ValueError):
    """The job has not done enough yet to be learned from; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn as its trajectory has it."""

    prompt_tokens: int
    """Context at the begin of its generation."""
    new_tokens: int
    """Of them, those that the turn before did not have."""
    output_tokens: int
    generate_s: float
    tool_s: float


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """The try of a rollout that counted, on its last placement. Times on one clock, in seconds."""

    host: str
    placed_s: float
    ended_s: float
    turns: tuple[RecordedTurn, ...]
    reward: float | None

    @property
    def generate_s(self) -> float:
        """Seconds of generation in all turns."""
        return math.fsum(turn.generate_s for turn in self.turns)

    @property
    def overhead_s(self) -> float:
        """Seconds of a turn that were neither generation nor tool, on average; queueing included."""
        known = self.generate_s + math.fsum(turn.tool_s for turn in self.turns)
        return max(0.0, self.ended_s - self.placed_s - known) / (len(self.turns) + 1)

    def trajectory(self) -> Trajectory:
        """What a simulation repeats of it; the last reply is no gap, nobody waits behind it."""
        last = len(self.turns) - 1
        return Trajectory(
            tuple(
                Turn(
                    new_tokens=turn.new_tokens,
                    output_tokens=max(turn.output_tokens, 1),
                    tool=None if index == last else Tool.OTHER,
                    tool_s=0.0 if index == last else turn.tool_s,
                )
                for index, turn in enumerate(self.turns)
            )
        )


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A graded group of training, whatever became of it."""

    ordinal: int
    opened_s: float
    closed_s: float
    graded_s: float
    rollouts: tuple[RecordedRollout, ...]

    @property
    def prefix_tokens(self) -> int:
        """The first prompt, which all members share."""
        return min((one.turns[0].prompt_tokens for one in self.rollouts if one.turns), default=0)

    @property
    def is_flat(self) -> bool:
        """Its members' rewards are all equal."""
        return is_flat([one.reward for one in self.rollouts])


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A committed step; `update_s` is part of `busy_s`."""

    step: int
    committed_s: float
    busy_s: float
    update_s: float | None
    trained_tokens: int
    staleness: tuple[int, ...] = ()
    """Of each of its groups, frozen at assignment."""
    assigned_s: float | None = None
    """When its last position was given away."""


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """What is kept of one attempt."""

    groups: tuple[RecordedGroup, ...]
    steps: tuple[RecordedStep, ...]
    syncs_s: tuple[float, ...]
    groups_per_batch: int = 1
    engines: int = 1
    slots: int = 1
    kv_tokens: int = 1

    def check(self) -> None:
        """Raise NotEnoughRecorded unless something can be fitted."""
        turns = sum(len(one.turns) for group in self.groups for one in group.rollouts)
        if not self.steps:
            raise NotEnoughRecorded("the job has committed no step yet")
        if turns < TURNS_MIN:
            raise NotEnoughRecorded(f"{turns} turns are recorded; {TURNS_MIN} are needed")


@dataclass(frozen=True, slots=True)
class EngineFit:
    """Coefficients, and how far single turns lie from them (standard deviation of the logarithm)."""

    rates: EngineRates
    spread: float
    turns: int


@dataclass(slots=True)
class _Load:
    """What one host decodes at one time, and its integral since the start."""

    kv_tokens: float = 0.0
    area: float = 0.0
    at: float = 0.0
    members: dict[int, int] = field(default_factory=dict)

    def advance(self, now: float) -> float:
        """The integral up to now."""
        self.area += self.kv_tokens * (now - self.at)
        self.at = now
        return self.area

    def change(self, group: tuple[int, int], private: float, is_start: bool) -> None:
        """A sequence starts or stops; `group` is its ordinal and the prefix that its members share."""
        ordinal, prefix = group
        before = self.members.get(ordinal, 0)
        after = before + 1 if is_start else before - 1
        self.members[ordinal] = after
        shared = prefix if (before == 0) != (after == 0) else 0
        self.kv_tokens += (private + shared) if is_start else -(private + shared)


@dataclass(frozen=True, slots=True)
class _Span:
    """One generation in time."""

    host: str
    start_s: float
    end_s: float
    group: tuple[int, int]
    private: float
    turn: RecordedTurn
    prefill_tokens: float


def engine_rows(groups: Sequence[RecordedGroup]) -> dict[int, list[Row]]:
    """Rows of the engine's fit by ordinal: [steps, steps x KV tokens read in each, tokens prefilled].

    Where a turn lies in time is not recorded, only how long its parts took: what a placement lasted
    beyond them is spread evenly before its generations. A group's first prompt is computed once.
    """
    spans = [span for group in groups for span in _spans(group)]
    reads = _kv_areas(spans)
    rows: dict[int, list[Row]] = {group.ordinal: [] for group in groups}
    for span, area in zip(spans, reads, strict=True):
        seconds = max(span.end_s - span.start_s, LEAST_SECONDS)
        steps = float(span.turn.output_tokens)
        columns = (steps, steps * area / seconds, span.prefill_tokens)
        rows[span.group[0]].append(Row(columns, span.turn.generate_s, seconds))
    return rows


def fit_engine(rows: Iterable[Row], slots: int, kv_tokens: int) -> EngineFit:
    """The engine's coefficients by least squares of relative errors."""
    listed = list(rows)
    step_s, kv_token_s, prefill_token_s = fit_relative(listed, 3)
    rates = EngineRates(step_s, kv_token_s, prefill_token_s, slots, kv_tokens)
    return EngineFit(rates, log_spread(listed, (step_s, kv_token_s, prefill_token_s)), len(listed))


def fit_trainer(steps: Sequence[RecordedStep], groups_per_batch: int = 1) -> TrainerRates:
    """Updates as they were measured, the rest by trained tokens; without measures by least squares.

    What passed between the last assignment and the commit beyond the work that then was left (the
    last group and the update) is waiting, and part of the update here.
    """
    updates = [step.update_s for step in steps if step.update_s is not None]
    if updates:
        work_s = math.fsum(step.busy_s - (step.update_s or 0.0) for step in steps)
        tokens = sum(step.trained_tokens for step in steps)
        token_s = max(work_s, 0.0) / max(tokens, 1)
        update_s = math.fsum(updates) / len(updates)
    else:
        rows = [Row((float(one.trained_tokens), 1.0), one.busy_s, 1.0) for one in steps]
        token_s, update_s = fit_relative(rows, 2)
    waited = [
        step.committed_s
        - step.assigned_s
        - update_s
        - token_s * step.trained_tokens / groups_per_batch
        for step in steps
        if step.assigned_s is not None
    ]
    return TrainerRates(token_s, update_s + _at(waited, 0.5))


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
        place_s=_at([one.place_s for one in found.values()], QUIET),
        turn_s=_at([one.turn_s for one in found.values()], QUIET),
        close_s=_at([one.close_s for one in found.values()], QUIET),
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


def is_flat(rewards: Sequence[float | None]) -> bool:
    """Whether no advantage differs from zero, as the trainer sees it; unknown rewards say nothing."""
    known = [reward for reward in rewards if reward is not None]
    return bool(known) and max(known) - min(known) <= ZERO_VARIANCE_TOLERANCE


def sync_s_of(job: RecordedJob) -> float:
    """Median of the weight syncs."""
    return _at(job.syncs_s, 0.5)


def _line(points: Sequence[tuple[float, float]]) -> Crowd:
    rows = [Row((1.0, crowd), max(wait, 0.0), 1.0) for crowd, wait in points]
    base, slope = fit_relative(rows, 2) if rows else (1.0, 0.0)
    return Crowd(base, slope)


def _is_saturated(job: RecordedJob) -> bool:
    """Whether so many generated at once on a host that others must have waited for a slot."""
    spans = [span for group in job.groups for span in _spans(group)]
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


def turns_of(
    spans: Sequence[Mapping[str, float]], is_same_segment: Sequence[bool]
) -> tuple[RecordedTurn, ...]:
    """Turns from a trajectory's spans (start, sampled_end, generate_s, tool_s); a new segment's
    whole prompt is new."""
    turns: list[RecordedTurn] = []
    known = 0
    for span, same in zip(spans, is_same_segment, strict=True):
        start, sampled_end = int(span["start"]), int(span["sampled_end"])
        turns.append(
            RecordedTurn(
                prompt_tokens=start,
                new_tokens=max(start - known, 0) if same else start,
                output_tokens=max(sampled_end - start, 0),
                generate_s=span["generate_s"],
                tool_s=span["tool_s"],
            )
        )
        known = sampled_end
    return tuple(turns)


def _spans(group: RecordedGroup) -> Iterable[_Span]:
    key = (group.ordinal, group.prefix_tokens)
    for one in group.rollouts:
        now, gap = one.placed_s, one.overhead_s
        for index, turn in enumerate(one.turns):
            start = now + gap
            now = start + turn.generate_s
            private = turn.prompt_tokens - group.prefix_tokens + turn.output_tokens / 2
            prefill = turn.new_tokens / len(group.rollouts) if index == 0 else turn.new_tokens
            if turn.output_tokens and turn.generate_s > 0:
                yield _Span(one.host, start, now, key, max(private, 0.0), turn, prefill)
            now += turn.tool_s


def _kv_areas(spans: Sequence[_Span]) -> list[float]:
    """For each span the integral of its host's KV over it: a sweep over starts and ends."""
    moments = sorted(
        [(span.start_s, index, True) for index, span in enumerate(spans)]
        + [(span.end_s, index, False) for index, span in enumerate(spans)]
    )
    loads: dict[str, _Load] = {}
    areas = [0.0] * len(spans)
    for now, index, is_start in moments:
        span = spans[index]
        load = loads.setdefault(span.host, _Load(at=now))
        area = load.advance(now)
        areas[index] = area if is_start else area - areas[index]
        load.change(span.group, span.private, is_start)
    return areas


def _at(values: Iterable[float], level: float) -> float:
    ordered = sorted(max(value, 0.0) for value in values)
    return quantile(ordered, level) if ordered else 0.0
