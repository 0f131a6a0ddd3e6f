"""What a job would take: the same core, run in virtual time on what is known of its work and machines.

    PlanRequest -> [replica: draw rates and groups -> run the core -> Course -> figures] x n -> Forecast

Method. A replica is one whole simulated run. Recorded inputs are a bootstrap (Efron 1979): its groups
are drawn with replacement from the recorded ones, and the engine's and the trainer's costs are fitted
anew to that draw, so that a replica carries the chance of the work and the uncertainty of the fit at
once. Declared inputs draw a profile and a speed around the stated ones instead. What the model itself
gets wrong is not in a resample: times are multiplied by exp(N(0, model_error)); a what-if then takes
out its own error on the unchanged settings (`correction.py`). The interval is the 10 % to the 90 %
quantile of the replicas, which makes it an 80 % interval; the forecast is their median.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final, Protocol

from domain.billing import PRICE_USD_PER_HOUR, Resource
from domain.plan import JobPlan
from simulation.rates import Rates, Waits, log_normal
from simulation.summary import quantile
from simulation.workload.trajectory import Trajectory
from simulation.workload.workload import chance_of

LOW: Final = 0.1
HIGH: Final = 0.9
"""Quantiles of the replicas between which 80 % of them lie."""

MODEL_ERROR_MIN: Final = 0.1
"""Standard deviation of the logarithm of time below which no model is believed."""

RUNS_MIN: Final = 2
"""Runs of a forecast that ran out of time: one alone has no interval."""

HOUR_S: Final = 3600.0

GoesOn = Callable[[], bool]
"""Whether there is time left."""


class PlanTooLarge(ValueError):
    """The plan passes a limit; the message names it."""


class TooFewRuns(PlanTooLarge):
    """The time of a forecast was over before enough simulated runs were."""


class PoolTooSmall(ValueError):
    """The pool never holds the job; the message says what it lacks."""


class OutOfTime(Exception):
    """A run was given up: its forecast has no time left."""


class CannotModel(ValueError):
    """The simulator has no such thing; the message says what and why."""


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """What one group will do. `is_flat`: all rewards equal, so that it is dropped and refilled."""

    members: tuple[Trajectory, ...]
    waits: tuple[Waits, ...]
    """Of each member."""
    grade_s: float
    """From the last member's end to the verdicts."""
    is_flat: bool = False
    grade_crowd: float = 0.0
    """Rollouts that were in flight meanwhile."""


class Groups(Protocol):
    """The work of one replica."""

    def group(self, ordinal: int) -> PlannedGroup:
        """The group with this ordinal; the same one however often it is asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """One possible truth about work and machines."""

    rates: Rates
    groups: Groups


class Inputs(Protocol):
    """What is known of a job, as something to draw from."""

    def draw(self, chance: Random, group_size: int) -> Draw:
        """One possible truth."""
        ...


@dataclass(frozen=True, slots=True)
class PlanPool:
    """What the job gets."""

    engines: int
    sandboxes: int
    """Process sandboxes at once, the grading reserve included."""
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A question: this plan, this pool, these inputs.

    `plan.max_steps` is the job's end; `steps` of it are simulated and the rest is as the later half
    of those.
    """

    plan: JobPlan
    pool: PlanPool
    inputs: Inputs
    steps: int
    replicas: int
    seed: int = 0
    model_error: float = MODEL_ERROR_MIN


@dataclass(frozen=True, slots=True)
class Course:
    """What one run did, simulated or recorded. Times in seconds from any origin."""

    began_s: float
    """The first training group opened."""
    commits_s: tuple[float, ...]
    staleness: tuple[int, ...]
    """Of each trained group."""
    engines: int
    generate_s: float
    """Sequence-seconds in which turns were generated."""
    busy_s: float
    """Engine-seconds in which anything was."""
    sandbox_s: float
    sandboxes_peak: int


class Figure(StrEnum):
    """What is forecast."""

    STEP_S = "step_s"
    """Mean seconds of a step."""
    TOTAL_S = "total_s"
    """From the first group to the last step."""
    STALENESS_MEAN = "staleness_mean"
    ENGINE_USE = "engine_use"
    """Share of its time in which an engine generates."""
    ACTIVE = "active"
    """Sequences that an engine generates at once, on average; beside its slots."""
    SANDBOXES = "sandboxes"
    """Held at once, on average."""
    SANDBOXES_PEAK = "sandboxes_peak"
    COST_USD = "cost_usd"
    """Of engines, trainer and sandboxes at list prices."""


TIMES: Final = frozenset({Figure.STEP_S, Figure.TOTAL_S, Figure.COST_USD})
"""What the model's error multiplies."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Median, and the quantiles between which 80 % lie."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """The answer."""

    figures: Mapping[Figure, Interval]
    staleness: tuple[Interval, ...]
    """Share of trained groups by staleness 0, 1, ..."""
    slots: int
    steps: int
    replicas: int


Rehearse = Callable[[JobPlan, PlanPool, Draw, GoesOn], Course]
"""Runs a plan to its last step in virtual time. Raises OutOfTime."""


def forecast(request: PlanRequest, rehearse: Rehearse, goes_on: GoesOn = lambda: True) -> Forecast:
    """Median and 80 % interval of every figure.

    `goes_on` is asked before each replica and within it: a budget of time may end a forecast early,
    with the replicas that ended. Raises TooFewRuns when these are too few.
    """
    plan = replace(request.plan, max_steps=min(request.steps, request.plan.max_steps))
    left = request.plan.max_steps - plan.max_steps
    runs: list[Mapping[Figure, float]] = []
    staleness: list[tuple[float, ...]] = []
    slots = 0
    for number in range(request.replicas):
        if not goes_on():
            break
        chance = chance_of(request.seed, number, "plan")
        draw = request.inputs.draw(chance, plan.group_size)
        slots = draw.rates.engine.slots
        try:
            course = rehearse(plan, request.pool, draw, goes_on)
        except OutOfTime:
            break
        factor = log_normal(chance, request.model_error)
        runs.append(_scaled(figures_of(course, left), factor))
        staleness.append(shares_of(course.staleness))
    if len(runs) < min(RUNS_MIN, request.replicas):
        raise TooFewRuns(f"{len(runs)} of {request.replicas} simulated runs ended")
    by_figure = {figure: interval_of([run[figure] for run in runs]) for figure in Figure}
    return Forecast(by_figure, _by_lag(staleness), slots, plan.max_steps, len(runs))


def figures_of(course: Course, steps_left: int = 0) -> dict[Figure, float]:
    """The figures of one run; `steps_left` more steps are as the later half of those that were made."""
    span = max(course.commits_s[-1] - course.began_s, 1e-9)
    count = len(course.commits_s)
    half = count // 2
    later_from = course.commits_s[half - 1] if half else course.began_s
    later_s = (course.commits_s[-1] - later_from) / (count - half)
    total_s = span + steps_left * later_s
    engine_s = course.engines * span
    sandboxes = course.sandbox_s / span
    return {
        Figure.STEP_S: total_s / (count + steps_left),
        Figure.TOTAL_S: total_s,
        Figure.STALENESS_MEAN: math.fsum(course.staleness) / max(len(course.staleness), 1),
        Figure.ENGINE_USE: min(course.busy_s / engine_s, 1.0),
        Figure.ACTIVE: course.generate_s / engine_s,
        Figure.SANDBOXES: sandboxes,
        Figure.SANDBOXES_PEAK: float(course.sandboxes_peak),
        Figure.COST_USD: cost_usd(total_s, course.engines, sandboxes),
    }


def cost_usd(seconds: float, engines: int, sandboxes: float) -> float:
    """Engines, one trainer and the sandboxes held, at list prices."""
    counts = {Resource.ENGINE: engines, Resource.TRAINER: 1, Resource.SANDBOX: sandboxes}
    hourly = math.fsum(PRICE_USD_PER_HOUR[resource] * counts[resource] for resource in Resource)
    return hourly * seconds / HOUR_S


def interval_of(values: Sequence[float]) -> Interval:
    """Median and 80 % interval of replicas."""
    ordered = sorted(values)
    return Interval(quantile(ordered, 0.5), quantile(ordered, LOW), quantile(ordered, HIGH))


def shares_of(staleness: Sequence[int]) -> tuple[float, ...]:
    """Share of groups by staleness 0, 1, ..."""
    if not staleness:
        return ()
    counts = [0] * (max(staleness) + 1)
    for lag in staleness:
        counts[lag] += 1
    return tuple(count / len(staleness) for count in counts)


def _scaled(figures: Mapping[Figure, float], factor: float) -> dict[Figure, float]:
    return {name: one * factor if name in TIMES else one for name, one in figures.items()}


def _by_lag(shares: Sequence[tuple[float, ...]]) -> tuple[Interval, ...]:
    depth = max((len(one) for one in shares), default=0)
    padded = [one + (0.0,) * (depth - len(one)) for one in shares]
    return tuple(interval_of([one[lag] for one in padded]) for lag in range(depth))
