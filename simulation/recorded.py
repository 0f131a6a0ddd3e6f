"""A recorded job as trajectories and as cost models: rows in, figures out, nothing read elsewhere.

    placements, turns -> who generated beside whom -> least squares -> EngineRates
    steps, trained tokens, updates                 -> ratio          -> TrainerRates
    openings, placements, verdicts, syncs          -> quantiles      -> Delays

Each fit can be repeated on a resample of groups or steps: that is the forecast's parameter
uncertainty. Generation seconds exclude queueing (the engine measures them from its admission on).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from simulation.fitting import Row, fit, log_spread
from simulation.rates import Delays, EngineRates, TrainerRates
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


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """What is kept of one attempt."""

    groups: tuple[RecordedGroup, ...]
    steps: tuple[RecordedStep, ...]
    syncs_s: tuple[float, ...]
    sandboxes_s: tuple[float, ...] = ()
    """From the opening of a group to a sandbox of it."""
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
    step_s, kv_token_s, prefill_token_s = fit(listed, 3)
    rates = EngineRates(step_s, kv_token_s, prefill_token_s, slots, kv_tokens)
    return EngineFit(rates, log_spread(listed, (step_s, kv_token_s, prefill_token_s)), len(listed))


def fit_trainer(steps: Sequence[RecordedStep]) -> TrainerRates:
    """Updates as they were measured, the rest by trained tokens; without measures by least squares."""
    updates = [step.update_s for step in steps if step.update_s is not None]
    if updates:
        work_s = math.fsum(step.busy_s - (step.update_s or 0.0) for step in steps)
        tokens = sum(step.trained_tokens for step in steps)
        mean_s = math.fsum(updates) / len(updates)
        return TrainerRates(max(work_s, 0.0) / max(tokens, 1), mean_s)
    rows = [
        Row((float(step.trained_tokens), 1.0), step.busy_s, max(step.busy_s, LEAST_SECONDS))
        for step in steps
    ]
    token_s, update_s = fit(rows, 2)
    return TrainerRates(token_s, update_s)


def delays_of(job: RecordedJob) -> Delays:
    """Waits without queueing: low quantiles of what was seen; verdicts and syncs by their median."""
    rollouts = [one for group in job.groups for one in group.rollouts if one.turns]
    last_replies = [one.turns[-1].tool_s for one in rollouts]
    return Delays(
        sandbox_s=_at(job.sandboxes_s, QUIET),
        turn_s=_at([one.overhead_s for one in rollouts], QUIET),
        grade_s=_at([g.graded_s - g.closed_s for g in job.groups], 0.5) + _at(last_replies, 0.5),
        sync_s=_at(job.syncs_s, 0.5),
    )


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
