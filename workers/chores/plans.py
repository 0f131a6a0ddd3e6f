"""Makes a plan: reads what is known, runs the simulator, bounded in CPU seconds.

spec -> recorded rollouts of the environment, a profile, or its limits -> forecast
job  -> its records -> unchanged settings beside what happened -> changed settings
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from infra.codec import convert
from simulation.bootstrap import RecordedInputs, course_of
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
    figures_of,
    forecast,
    shares_of,
)
from simulation.recorded import NotEnoughRecorded, RecordedJob
from simulation.rehearsal import rehearse
from stores.system import recorded as store
from stores.system.operations import TakenOperation
from workers.chores.handling import ChoreFailed, ChoreTools
from workers.chores.plan_records import read_recorded
from workers.chores.plan_spec import PlannedSpec, job_plan, read_planned

CPU_S_MAX: Final = 60.0
"""CPU seconds of one forecast; one that needs more ends with the replicas it has and says so."""

BIAS_MAX: Final = 3.0
"""Beyond it a simulated step time says nothing about the recorded one, and is not scaled to it."""

TABLE_MODEL_ERROR: Final = 0.25
"""Standard deviation of the logarithm of time where nothing of the machines was measured."""

Note = dict[str, str]


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


async def _what_if(
    tools: ChoreTools, operation: TakenOperation, asked: PlanAsked, spec: PlannedSpec
) -> Mapping[str, object]:
    assert asked.job_id is not None
    found, job = await read_recorded(tools, operation.project_id, asked.job_id)
    inputs = RecordedInputs(job)
    truth = course_of(job)
    made = len(truth.commits_s)
    base = PlanRequest(
        # The job is compared over what it has done, whatever its end was meant to be.
        plan=replace(job_plan(spec, job.engines, found.base_step, made), max_steps=made),
        pool=PlanPool(job.engines, tools.settings.limits.sandboxes),
        inputs=inputs,
        steps=min(asked.steps, made),
        replicas=asked.replicas,
        seed=asked.seed,
    )
    unchanged, was_cut = await _forecast(base)
    real = figures_of(truth)
    bias, model_error = _own_error(real, unchanged)
    answer: dict[str, object] = {
        "recorded": _recorded_json(job, truth),
        "unchanged": _forecast_json(unchanged, job.engines),
        "error": {
            name.value: unchanged.figures[name].median / value - 1.0
            for name, value in real.items()
            if value > 0
        },
        "bias": bias,
        "model_error": model_error,
        "assumptions": _of_recorded(job, spec),
        "cut_short": was_cut,
    }
    if asked.changed is None:
        return answer
    known = replace(base, bias=bias, model_error=model_error, steps=asked.steps)
    changed = _changed(known, job, (found.base_step, asked))
    result, was_cut_too = await _forecast(changed)
    return answer | {
        "changed": _forecast_json(result, changed.pool.engines),
        "assumptions": [*_of_recorded(job, spec), *_of_pool(asked.pool)],
        "cut_short": was_cut or was_cut_too,
    }


def _changed(base: PlanRequest, job: RecordedJob, asked: tuple[int, PlanAsked]) -> PlanRequest:
    """The same question with the changed settings and machines."""
    base_step, question = asked
    assert question.changed is not None
    engines = question.pool.engines or job.engines
    return replace(
        base,
        plan=job_plan(read_planned(question.changed), engines, base_step, question.steps),
        pool=PlanPool(engines, question.pool.sandboxes or base.pool.sandboxes),
        inputs=_inputs_of(job, question),
    )


def _inputs_of(job: RecordedJob, asked: PlanAsked) -> Inputs:
    if asked.pool.engine is None:
        return RecordedInputs(job, asked.pool.slots)
    return RecordedGroupsInputs(KNOWN_ENGINES[asked.pool.engine], RecordedInputs(job))


async def _of_spec(
    tools: ChoreTools, operation: TakenOperation, asked: PlanAsked, spec: PlannedSpec
) -> Mapping[str, object]:
    settings = tools.settings
    engines = asked.pool.engines or min(spec.resources.rollout_gpus.max, settings.pool.engines)
    inputs, notes, model_error = await _known(tools, operation, asked, spec)
    request = PlanRequest(
        plan=job_plan(spec, engines, 0, asked.steps),
        pool=PlanPool(engines, asked.pool.sandboxes or settings.limits.sandboxes),
        inputs=inputs,
        steps=asked.steps,
        replicas=asked.replicas,
        seed=asked.seed,
        model_error=model_error,
    )
    result, was_cut = await _forecast(request)
    return {
        "forecast": _forecast_json(result, engines),
        "model_error": model_error,
        "assumptions": [*notes, *_of_pool(asked.pool), *_of_evaluation(spec)],
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
        notes = [machines, _note("rollouts", "limits", detail)]
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
    goes_on = _budget()
    result = await asyncio.to_thread(forecast, request, rehearse, goes_on)
    return result, result.replicas < request.replicas


def _budget() -> Callable[[], bool]:
    end = time.process_time() + CPU_S_MAX
    return lambda: time.process_time() < end


def _own_error(real: Mapping[Figure, float], unchanged: Forecast) -> tuple[float, float]:
    """What times are multiplied by, and the error that is left in them: half of what was corrected."""
    ratio = real[Figure.STEP_S] / unchanged.figures[Figure.STEP_S].median
    bias = min(max(ratio, 1.0 / BIAS_MAX), BIAS_MAX)
    return bias, max(MODEL_ERROR_MIN, abs(math.log(ratio)) / 2)


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


def _of_pool(pool: _Pool) -> list[Note]:
    chosen = {"engines": pool.engines, "sandboxes": pool.sandboxes, "slots": pool.slots}
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
