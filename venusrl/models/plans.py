"""Plans: what a job would take on a pool, forecast by running the scheduler's core in virtual time."""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from venusrl.models._base import Answer, Wire

STEPS_MAX: Final = 200
"""Steps of one simulated run; a longer job goes on as the later half of them."""

REPLICAS_MAX: Final = 64
"""Simulated runs of one forecast; an 80 % interval gains nothing from more."""

EngineName = Literal["cpu-embedded", "8b-h100", "8b-h200", "32b-4xh100"]
"""Engines that a plan can assume; `docs/how-to/plan.md` has their figures."""

Count = Annotated[int, Field(ge=1, le=4_096)]
Amount = Annotated[float, Field(ge=0.0, le=1e7)]


class PlanPool(Wire):
    """Machines of a plan; what is left out is as this installation, or the recorded job, has it."""

    engines: Count | None = None
    """Engine hosts that the job gets."""
    sandboxes: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    """Sandboxes at once."""
    slots: Count | None = None
    """Sequences that one engine generates at once."""
    engine: EngineName | None = None
    """Which engine; null: by the size of the model, or as recorded."""


class Quantiles(Wire):
    """A quantity by three of its quantiles."""

    p10: Amount
    p50: Amount
    p90: Amount

    @model_validator(mode="after")
    def _rises(self) -> "Quantiles":
        if not self.p10 <= self.p50 <= self.p90:
            raise ValueError("p10, p50 and p90 must not fall")
        return self


class PlanProfile(Wire):
    """What rollouts of an environment do, where none were recorded."""

    turns: Quantiles
    """Turns of a rollout."""
    prompt_tokens: Quantiles
    """First prompt."""
    output_tokens: Quantiles
    """Sampled in one turn."""
    observation_tokens: Quantiles
    """Added by one reply."""
    tool_s: Quantiles
    """Seconds of one reply."""
    flat_share: Annotated[float, Field(ge=0.0, le=0.95)] = 0.0
    """Share of groups whose rewards are all equal: they are dropped, and others take their places."""

    @model_validator(mode="after")
    def _samples(self) -> "PlanProfile":
        if min(self.turns.p10, self.output_tokens.p10) < 1:
            raise ValueError(
                "a rollout has at least one turn, and a turn samples at least one token"
            )
        return self


class PlanCreate(Wire):
    """Body of POST /v1/plans: a spec on a pool, or a recorded job with changed settings."""

    spec: dict[str, Any] | None = None
    """A job spec, as it would be submitted; or `job`."""
    job: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """A job of the project with at least one committed step; or `spec`."""
    changes: dict[str, Any] = Field(default_factory=dict)
    """Part of a spec, laid over the recorded job's: scheduling, group and batch size, the end."""
    pool: PlanPool = PlanPool()
    """Machines."""
    profile: PlanProfile | None = None
    """Of the spec's environment; null: the project's own earlier rollouts of it, else its limits."""
    steps: Annotated[int, Field(ge=1, le=STEPS_MAX)] | None = None
    """Steps to simulate; null: all, 12 at most."""
    replicas: Annotated[int, Field(ge=4, le=REPLICAS_MAX)] = 20
    """Simulated runs of one forecast."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """The same question with the same seed has the same answer."""

    @model_validator(mode="after")
    def _asks_one_question(self) -> "PlanCreate":
        if (self.spec is None) == (self.job is None):
            raise ValueError("give either spec or job")
        if self.changes and self.job is None:
            raise ValueError("changes belong to a job; write them into the spec")
        if self.profile is not None and self.job is not None:
            raise ValueError("a recorded job has its own rollouts; leave profile out")
        return self


class Interval(Answer):
    """Median of the simulated runs, and the bounds between which 80 % of them lie.

    Where the plan has a `warning` that nothing is known, they are bounds of an assumption and no 80 %
    interval. Of `changed`, they are no closer than the error of the unchanged settings.
    """

    median: float
    low: float
    high: float


class Forecast(Answer):
    """One forecast. `figures`: step_s, total_s, staleness_mean, engine_use, active, sandboxes,
    sandboxes_peak, cost_usd; `staleness`: share of trained groups by staleness 0, 1, ..."""

    figures: dict[str, Interval]
    staleness: list[Interval]
    engines: int
    slots: int
    steps: int
    replicas: int


class Recorded(Answer):
    """What the recorded job really did, in the same figures."""

    figures: dict[str, float]
    staleness: list[float]
    engines: int
    slots: int
    steps: int


class Assumption(Answer):
    """One input of a plan: `source` is recorded, table, profile, limits, chosen, auto or ignored."""

    input: str
    source: str
    detail: str


class PlanResult(Answer):
    """The answer of a plan.

    For a spec: `forecast`. For a recorded job: `recorded` and `unchanged`, with `error` = forecast /
    recorded - 1 by figure; then `changed`, if something was changed. One rule corrects it: each figure
    is multiplied by recorded / unchanged of the same figure, a factor of three at most, and its
    interval is no narrower than that error; staleness is as simulated, its interval widened alike.
    """

    warning: str | None = None
    """Why the figures are no forecast to rely on; read it first."""
    forecast: Forecast | None = None
    recorded: Recorded | None = None
    unchanged: Forecast | None = None
    error: dict[str, float] = Field(default_factory=dict)
    changed: Forecast | None = None
    bias: float = 1.0
    """Recorded over unchanged step time: what `step_s` of `changed` was multiplied by."""
    model_error: float
    """Standard deviation of the logarithm of time that the model itself is taken to be wrong by."""
    assumptions: list[Assumption]
    cut_short: bool = False
    """The limit of CPU seconds ended a forecast with fewer replicas than were asked for."""


class Plan(Answer):
    """A plan; `state` is pending, running, done or failed. Also an operation with the same id."""

    id: str
    state: str
    result: PlanResult | None = None
    error: dict[str, Any] | None = None
    created_at: datetime
