"""What an engine costs, from recorded turns: who generated beside whom, then least squares.

    placements, turns -> who generated beside whom -> least squares -> EngineRates

Generation seconds exclude queueing: the engine measures them from its admission on.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from simulation.fitting import Row, fit_relative, log_spread
from simulation.rates import EngineRates
from simulation.recorded import RecordedGroup, RecordedTurn

LEAST_SECONDS: Final = 1e-4
"""Turns shorter than a clock can tell apart count as this, so that no relative error is infinite."""


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
class Span:
    """One generation in time."""

    host: str
    start_s: float
    end_s: float
    group: tuple[int, int]
    private: float
    turn: RecordedTurn
    prefill_tokens: float

    @property
    def attended(self) -> float:
        """Tokens that those of its prompt attend to, summed over them."""
        return self.prefill_tokens * (self.turn.prompt_tokens - self.turn.new_tokens / 2)


def engine_rows(groups: Sequence[RecordedGroup]) -> dict[int, list[Row]]:
    """Rows of the engine's fit by ordinal.

    [steps, steps x KV tokens read in each, tokens prefilled, tokens that these attend to in sum]. Where a
    turn lies in time is not recorded, only how long its parts took: what a placement lasted beyond them
    is spread evenly before its generations. A group's first prompt is computed once. The prompts that
    begin beside a turn on its engine are computed in its steps, so they count for it too.
    """
    spans = [span for group in groups for span in spans_of(group)]
    reads = _kv_areas(spans)
    arrivals = _arrivals(spans)
    rows: dict[int, list[Row]] = {group.ordinal: [] for group in groups}
    for span, area in zip(spans, reads, strict=True):
        seconds = max(span.end_s - span.start_s, LEAST_SECONDS)
        steps = float(span.turn.output_tokens)
        prefilled, attended = arrivals[span.host].within(span.start_s, span.end_s)
        columns = (steps, steps * area / seconds, prefilled, attended)
        rows[span.group[0]].append(Row(columns, span.turn.generate_s, seconds))
    return rows


def fit_engine(rows: Iterable[Row], slots: int, kv_tokens: int) -> EngineFit:
    """The engine's coefficients by least squares of relative errors.

    What a context adds to a prefilled token is in the token's mean: jobs have too few contexts for both.
    """
    listed = [replace(row, columns=row.columns[:3]) for row in rows]
    step_s, kv_token_s, prefill_token_s = fit_relative(listed, 3)
    rates = EngineRates(step_s, kv_token_s, prefill_token_s, slots, kv_tokens)
    return EngineFit(rates, log_spread(listed, (step_s, kv_token_s, prefill_token_s)), len(listed))


def spans_of(group: RecordedGroup) -> Iterable[Span]:
    """The generations of a group's rollouts, placed in time."""
    key = (group.ordinal, group.prefix_tokens)
    for one in group.rollouts:
        now, gap = one.placed_s, one.overhead_s
        for index, turn in enumerate(one.turns):
            start = now + gap
            now = start + turn.generate_s
            private = turn.prompt_tokens - group.prefix_tokens + turn.output_tokens / 2
            prefill = turn.new_tokens / len(group.rollouts) if index == 0 else turn.new_tokens
            if turn.output_tokens and turn.generate_s > 0:
                yield Span(one.host, start, now, key, max(private, 0.0), turn, prefill)
            now += turn.tool_s


class _Arrivals:
    """Prompts by the moment at which an engine began with them."""

    def __init__(self, spans: Sequence[Span]) -> None:
        ordered = sorted(spans, key=lambda span: span.start_s)
        self._times = [span.start_s for span in ordered]
        self._tokens = [0.0, *accumulate(span.prefill_tokens for span in ordered)]
        self._attended = [0.0, *accumulate(span.attended for span in ordered)]

    def within(self, start: float, end: float) -> tuple[float, float]:
        """Tokens of those that began in a stretch, its end excluded, and what these attend to."""
        first, last = bisect_left(self._times, start), bisect_left(self._times, end)
        return (
            self._tokens[last] - self._tokens[first],
            self._attended[last] - self._attended[first],
        )


def _arrivals(spans: Sequence[Span]) -> dict[str, _Arrivals]:
    """By host."""
    hosts: dict[str, list[Span]] = {}
    for span in spans:
        hosts.setdefault(span.host, []).append(span)
    return {host: _Arrivals(found) for host, found in hosts.items()}


def _kv_areas(spans: Sequence[Span]) -> list[float]:
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
