"""Makes a plan: reads what is known, runs the simulator, bounded in CPU seconds.

spec -> recorded rollouts of the environment, a profile, or its limits -> forecast
job  -> its records -> unchanged settings beside what happened -> changed settings
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from domain.spec_parts import EngineRange
from infra.codec import convert
from infra.settings import Settings
from simulation.bootstrap import RecordedInputs, course_of
from simulation.correction import corrected, correction_of, model_error_of
from simulation.declared import (
    KNOWN_ENGINES,
    DeclaredInputs,
    Profile,
    RecordedGroupsInputs,
    engine_for,
    profile_of_limits,
)
from simulation.plan import (
    MODEL_ERROR_MIN,
    CannotModel,
    Course,
    Figure,
    Forecast,
    Inputs,
    PlanPool,
    PlanRequest,
    PlanTooLarge,
    PoolTooSmall,
    TooFewRuns,
    figures_of,
    forecast,
    shares_of,
)
from simulation.recorded import NotEnoughRecorded, RecordedJob
from simulation.rehearsal import GRADING_RESERVE, rehearse
from stores.system import recorded as store
from stores.system.operations import TakenOperation
from stores.system.recorded import RecordedOf
from workers.chores.handling import ChoreFailed, ChoreTools
from workers.chores.plan_records import read_recorded
from workers.chores.plan_spec import PlannedSpec, job_plan, read_planned

CPU_S_MAX: Final = 60.0
"""CPU seconds of one forecast; one that needs more ends with the replicas it has and says so."""

WALL_S_MAX: Final = 110.0
"""Seconds of one forecast on a machine that has no core for it; two of them end before a chore is."""

TABLE_MODEL_ERROR: Final = 0.25
"""Standard deviation of the logarithm of time where nothing of the machines was measured."""

LIMITS: Final = "limits"
"""Source of rollouts of which only the spec's limits are known."""

NOTHING_KNOWN: Final = (
    "nothing is known of {}: limits of the spec only. Figures may be wrong by a factor of a hundred,"
    " low and high are no 80 % interval; give a profile, or run a few steps and plan again"
)
"""Warning before such a plan."""

Note = dict[str, str]

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Pool:
    engines: int | None = None
    sandboxes: int | None = None
    slots: int | None = None
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class PlanAsked:
    """What the operation's row asks for."""

    spec: Mapping[str, Any]
    steps: int
    replicas: int
    seed: int
    pool: _Pool = field(default_factory=_Pool)
    job_id: str | None = None
    changed: Mapping[str, Any] | None = None
    profile: Profile | None = None
    parameters: int | None = None
    unchanged_steps: int | None = None
    """Of the run that is compared with the recorded one."""
    has_engines: bool = False
    """How many engines the job takes is among the changes."""
    chosen: tuple[tuple[str, str, str], ...] = ()
    """Pointer, value and reason of what the changes left open."""


async def plan(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """The answer of a plan. Raises ChoreFailed with a closed code; repeating it gives the same."""
    try:
        asked = convert(dict(operation.request), PlanAsked)
        spec = read_planned(asked.spec)
        if asked.job_id is None:
            return await _of_spec(tools, operation, asked, spec)
        return await _what_if(tools, operation, asked, spec)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    except NotEnoughRecorded as error:
        raise ChoreFailed("nothing_recorded", str(error)) from error
    except CannotModel as error:
        raise ChoreFailed("not_modelled", str(error)) from error
    except PlanTooLarge as error:
        raise ChoreFailed("plan_too_large", str(error)) from error
    except PoolTooSmall as error:
        raise ChoreFailed("never_fits", str(error)) from error


async def _what_if(
    tools: ChoreTools, operation: TakenOperation, asked: PlanAsked, spec: PlannedSpec
) -> Mapping[str, object]:
    assert asked.job_id is not None
    found, job = await read_recorded(tools, operation.project_id, asked.job_id)
    inputs = RecordedInputs(job)
    truth = course_of(job)
    made = len(truth.commits_s)
    sandboxes = max(_sandboxes(tools.settings), truth.sandboxes_peak + GRADING_RESERVE)
    base = PlanRequest(
        # The job is compared over what it has done, whatever its end was meant to be.
        plan=replace(job_plan(spec, job.engines, found.base_step, made), max_steps=made),
        pool=PlanPool(job.engines, sandboxes),
        inputs=inputs,
        steps=min(asked.unchanged_steps or asked.steps, made),
        replicas=asked.replicas,
        seed=asked.seed,
    )
    unchanged, was_cut = await _forecast(base)
    real = figures_of(truth)
    step_s = (real[Figure.STEP_S], unchanged.figures[Figure.STEP_S].median)
    model_error = model_error_of(*step_s)
    notes = [*_of_recorded(job, spec), *_of_steps(unchanged.steps, made)]
    answer: dict[str, object] = {
        "recorded": _recorded_json(job, truth),
        "unchanged": _forecast_json(unchanged, job.engines),
        "error": {
            name.value: unchanged.figures[name].median / value - 1.0
            for name, value in real.items()
            if value > 0
        },
        "bias": correction_of(*step_s),
        "model_error": model_error,
        "assumptions": notes,
        "cut_short": was_cut,
    }
    if asked.changed is None:
        return answer
    changed, chosen = _changed(replace(base, model_error=model_error), job, found, asked)
    result, was_cut_too = await _forecast(changed)
    return answer | {
        "changed": _forecast_json(corrected(result, real, unchanged), changed.pool.engines),
        "assumptions": [*notes, *chosen],
        "cut_short": was_cut or was_cut_too,
    }


def _changed(
    base: PlanRequest, job: RecordedJob, found: RecordedOf, asked: PlanAsked
) -> tuple[PlanRequest, list[Note]]:
    """The same question with the changed settings and machines, and what was chosen for it."""
    assert asked.changed is not None
    spec = read_planned(asked.changed)
    if asked.has_engines:
        engines, notes = engines_of(spec.resources.rollout_gpus, asked.pool.engines)
    else:
        engines, notes = engines_of(None, asked.pool.engines, job.engines)
    request = replace(
        base,
        plan=job_plan(spec, engines, found.base_step, asked.steps),
        pool=PlanPool(engines, asked.pool.sandboxes or base.pool.sandboxes),
        inputs=_inputs_of(job, asked),
        steps=asked.steps,
    )
    autos = [
        _note(pointer, "auto", f"{value}: {reason}") for pointer, value, reason in asked.chosen
    ]
    return request, [*notes, *_of_pool(asked.pool), *autos]


def engines_of(
    allowed: EngineRange | None, asked: int | None, otherwise: int | None = None
) -> tuple[int, list[Note]]:
    """Engines that a job takes of those there are: never more than its most.

    `otherwise`: those there are where nobody asks. Raises PoolTooSmall below its least.
    """
    said = [] if asked is None else [_note("engines", "chosen", str(asked))]
    there = asked or otherwise
    if allowed is None:
        assert there is not None, "either asked for or recorded"
        return there, said
    if there is None:
        detail = f"{allowed.max}: the most that resources.rollout_gpus allows"
        return allowed.max, [_note("engines", "chosen", detail)]
    if there < allowed.min:
        raise PoolTooSmall(f"the job needs {allowed.min} engine hosts; the pool has {there}")
    if there <= allowed.max:
        return there, said
    if asked is not None:
        detail = f"{allowed.max} of {asked}: resources.rollout_gpus.max allows no more"
        said = [_note("engines", "chosen", detail)]
    return allowed.max, said


def _sandboxes(settings: Settings) -> int:
    """Of all nodes of this installation."""
    return settings.limits.sandboxes * settings.pool.nodes


def _inputs_of(job: RecordedJob, asked: PlanAsked) -> Inputs:
    if asked.pool.engine is None:
        return RecordedInputs(job, asked.pool.slots)
    return RecordedGroupsInputs(KNOWN_ENGINES[asked.pool.engine], RecordedInputs(job))


async def _of_spec(
    tools: ChoreTools, operation: TakenOperation, asked: PlanAsked, spec: PlannedSpec
) -> Mapping[str, object]:
    settings = tools.settings
    engines, machines = engines_of(
        spec.resources.rollout_gpus, asked.pool.engines, settings.pool.engines
    )
    inputs, notes, model_error = await _known(tools, operation, asked, spec)
    request = PlanRequest(
        plan=job_plan(spec, engines, 0, asked.steps),
        pool=PlanPool(engines, asked.pool.sandboxes or _sandboxes(settings)),
        inputs=inputs,
        steps=asked.steps,
        replicas=asked.replicas,
        seed=asked.seed,
        model_error=model_error,
    )
    result, was_cut = await _forecast(request)
    is_guess = any(one["source"] == LIMITS for one in notes)
    return {
        "warning": NOTHING_KNOWN.format(spec.environment) if is_guess else None,
        "forecast": _forecast_json(result, engines),
        "model_error": model_error,
        "assumptions": [*notes, *machines, *_of_pool(asked.pool), *_of_evaluation(spec)],
        "cut_short": was_cut,
    }


async def _known(
    tools: ChoreTools, operation: TakenOperation, asked: PlanAsked, spec: PlannedSpec
) -> tuple[Inputs, list[Note], float]:
    """Inputs for a spec, what they assume, and how far to trust the machines' figures."""
    engine = engine_for(float(asked.parameters or 8e9), asked.pool.engine)
    if asked.pool.slots is not None:
        engine = replace(engine, rates=replace(engine.rates, slots=asked.pool.slots))
    machines = _note("engine", "table", f"{engine.name}: {engine.source}")
    if asked.profile is not None:
        inputs = DeclaredInputs(engine, asked.profile, spec.bounds)
        notes = [machines, _note("rollouts", "profile", "as the request declares them")]
        return inputs, notes, TABLE_MODEL_ERROR
    async with tools.database.begin() as connection:
        earlier = await store.newest_of_environment(
            connection, operation.project_id, spec.environment
        )
    if earlier is None:
        profile = profile_of_limits(spec.bounds)
        detail = f"nothing is known of {spec.environment}: spread over its limits"
        notes = [machines, _note("rollouts", LIMITS, detail)]
        return DeclaredInputs(engine, profile, spec.bounds), notes, TABLE_MODEL_ERROR
    found, job = await read_recorded(tools, operation.project_id, earlier)
    recorded = RecordedInputs(job, asked.pool.slots)
    rollouts = _note("rollouts", "recorded", f"rollouts of {spec.environment} in {earlier}")
    same_model = read_planned(found.spec).model.base == spec.model.base
    if same_model and asked.pool.engine is None:
        measured = _note("engine", "recorded", f"fitted to the turns of {earlier}")
        return recorded, [measured, rollouts], MODEL_ERROR_MIN * 2
    return RecordedGroupsInputs(engine, recorded), [machines, rollouts], TABLE_MODEL_ERROR


async def _forecast(request: PlanRequest) -> tuple[Forecast, bool]:
    """On a thread; the flag says that the limit of CPU seconds cut it short."""
    budget = Budget()
    try:
        result = await asyncio.to_thread(forecast, request, rehearse, budget.is_left)
    except TooFewRuns as error:
        raise PlanTooLarge(f"{error} {budget.spent()}") from error
    return result, result.replicas < request.replicas


class Budget:
    """CPU seconds and seconds by the clock of one forecast, from when it is made."""

    def __init__(self, cpu: Clock = time.process_time, clock: Clock = time.monotonic) -> None:
        self._clocks = (cpu, clock)
        self._began = (cpu(), clock())

    def is_left(self) -> bool:
        """Whether neither has reached its limit."""
        cpu_s, clock_s = self._used()
        return cpu_s < CPU_S_MAX and clock_s < WALL_S_MAX

    def spent(self) -> str:
        """Which limit was reached, and what the user can do about it."""
        cpu_s, clock_s = self._used()
        if cpu_s >= CPU_S_MAX:
            return f"in {CPU_S_MAX:g} s of CPU; ask for fewer steps, or smaller batches"
        share = f"in {clock_s:.0f} s by the clock, of which it had a core for {cpu_s:.0f} s"
        return f"{share}: this installation is busy; ask again, or for fewer steps"

    def _used(self) -> tuple[float, float]:
        cpu, clock = self._clocks
        return cpu() - self._began[0], clock() - self._began[1]


def _recorded_json(job: RecordedJob, truth: Course) -> dict[str, object]:
    return {
        "figures": {name.value: value for name, value in figures_of(truth).items()},
        "staleness": list(shares_of(truth.staleness)),
        "engines": job.engines,
        "slots": job.slots,
        "steps": len(truth.commits_s),
    }


def _forecast_json(one: Forecast, engines: int) -> dict[str, object]:
    return {
        "figures": {name.value: _interval(value) for name, value in one.figures.items()},
        "staleness": [_interval(share) for share in one.staleness],
        "engines": engines,
        "slots": one.slots,
        "steps": one.steps,
        "replicas": one.replicas,
    }


def _interval(one: Any) -> dict[str, float]:
    return {"median": one.median, "low": one.low, "high": one.high}


def _note(name: str, source: str, detail: str) -> Note:
    return {"input": name, "source": source, "detail": detail}


def _of_recorded(job: RecordedJob, spec: PlannedSpec) -> list[Note]:
    rollouts = sum(len(group.rollouts) for group in job.groups)
    fit = f"fitted to {rollouts} rollouts of {len(job.groups)} groups and {len(job.steps)} steps"
    return [
        _note("engine", "recorded", fit),
        _note("rollouts", "recorded", "drawn with replacement from the job's own groups"),
        *_of_evaluation(spec),
    ]


def _of_steps(simulated: int, made: int) -> list[Note]:
    if simulated == made:
        return []
    detail = f"the first {simulated} of {made} steps; the others as the later half of these"
    return [_note("unchanged", "chosen", detail)]


def _of_pool(pool: _Pool) -> list[Note]:
    chosen = {"sandboxes": pool.sandboxes, "slots": pool.slots}
    notes = [
        _note(name, "chosen", str(value)) for name, value in chosen.items() if value is not None
    ]
    if pool.engine is not None:
        notes.append(_note("engine", "table", KNOWN_ENGINES[pool.engine].source))
    return notes


def _of_evaluation(spec: PlannedSpec) -> list[Note]:
    if spec.evaluation is None:
        return []
    return [_note("evaluation", "ignored", "held-out evaluations are not simulated")]
