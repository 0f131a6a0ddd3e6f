"""Every `auto`, and every null that means "from elsewhere", becomes a value with its reason."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from api.jobs.outcome import Outcome, Surroundings
from api.jobs.running_ahead import order_of, ratio_of
from api.jobs.uses import FROM_ELSEWHERE, evaluated, uses_of
from infra.settings import Settings
from venusrl.env.host.manifest import EnvironmentLimits
from venusrl.models.checkpoints import BaseModelInfo
from venusrl.models.job_spec import JobSpec

SMALL_MODEL_PARAMETERS: Final = 10_000_000
"""Below it full-weight training takes the larger default learning rate."""

MAX_STEPS_DEFAULT: Final = 100
"""The last step of a job that names no end."""


class Choice(NamedTuple):
    """What stands at a place that the user left open."""

    pointer: str
    value: Any
    reason: str


def limits_of(version: Any) -> Mapping[str, float]:
    """Limits that an environment version's manifest declares, with the defaults of those it leaves."""
    declared = (version.manifest or {}).get("limits") or {}
    defaults = EnvironmentLimits()
    names = ("max_turns", "wall_s", "reply_s", "setup_s")
    return {name: declared.get(name) or getattr(defaults, name) for name in names}


def context_of(spec: JobSpec, model: BaseModelInfo, settings: Settings) -> tuple[int, str]:
    """Context of the job's rollouts, and why."""
    held = settings.limits.context_tokens
    if spec.model.context_tokens is not None:
        return spec.model.context_tokens, "chosen"
    if held < model.context_tokens:
        return held, "what an engine of this installation holds"
    return model.context_tokens, "the model's context"


def resolve(spec: JobSpec, normal: dict[str, Any], around: Surroundings, outcome: Outcome) -> None:
    """Fill in what is open; what an earlier resolution said is kept where its value still stands."""
    for choice in _choices(spec, around, outcome):
        if _put(normal, choice):
            outcome.resolved.append((choice.pointer, choice.value, choice.reason))
    new = {pointer for pointer, _, _ in outcome.resolved}
    said = [
        one.model_dump(mode="json")
        for one in spec.resolved
        if one.pointer not in new and value_at(normal, one.pointer) == one.value
    ]
    said += [
        {"pointer": pointer, "value": value, "reason": reason}
        for pointer, value, reason in outcome.resolved
    ]
    normal["resolved"] = said


def settle(spec: JobSpec, normal: dict[str, Any], settings: Settings) -> list[tuple[str, Any, str]]:
    """Fill in what is open of scheduling, machines and the end, for a spec that is only planned.

    What was filled in, each with its reason.
    """
    choices = [*_of_scheduling(spec), *_of_engines(spec, settings), *_of_end(spec)]
    return [(one.pointer, one.value, one.reason) for one in choices if _put(normal, one)]


def value_at(document: Any, pointer: str) -> Any:
    """What stands at a pointer; None where there is nothing."""
    for part in pointer.strip("/").split("/"):
        if isinstance(document, list) and part.isdecimal() and int(part) < len(document):
            document = document[int(part)]
        elif isinstance(document, Mapping):
            document = document.get(part)
        else:
            return None
    return document


def put_at(document: Any, pointer: str, value: Any) -> None:
    """Write at a pointer whose parent exists."""
    *path, last = pointer.strip("/").split("/")
    for part in path:
        document = document[int(part)] if isinstance(document, list) else document[part]
    document[last] = value


def _put(normal: dict[str, Any], choice: Choice) -> bool:
    now = value_at(normal, choice.pointer)
    is_open = now is None if FROM_ELSEWHERE.fullmatch(choice.pointer) else now == "auto"
    if is_open:
        put_at(normal, choice.pointer, choice.value)
    return is_open


def _choices(spec: JobSpec, around: Surroundings, outcome: Outcome) -> Iterator[Choice]:
    model = around.models[spec.model.base]
    yield Choice("/model/context_tokens", *context_of(spec, model, around.settings))
    for placed in uses_of(spec):
        limits, reason = limits_of(outcome.versions[placed.pointer]), "the environment's limit"
        yield Choice(f"{placed.pointer}/max_turns", int(limits["max_turns"]), reason)
        yield Choice(f"{placed.pointer}/wall_s", float(limits["wall_s"]), reason)
    for placed in evaluated(spec):
        yield Choice(f"{placed.pointer}/split", placed.splits[0][1], "evaluation.split")
    yield from _of_end(spec)
    half = max(1, spec.rollout.group_size // 2)
    yield Choice("/rollout/on_failure/min_group_size", half, "half of the group")
    yield from _of_learning(spec, model)
    yield from _of_scheduling(spec)
    yield Choice("/resources/trainer_gpus", 1, "one trainer host a job")
    yield Choice("/resources/tensor_parallel", 1, "an engine is one host")
    yield Choice("/resources/placement", "split", "engines and trainer are hosts of their own")
    yield from _of_engines(spec, around.settings)


def _of_end(spec: JobSpec) -> Iterator[Choice]:
    if spec.stop.max_epochs is None:
        yield Choice("/stop/max_steps", MAX_STEPS_DEFAULT, "no end was named")


def _of_engines(spec: JobSpec, settings: Settings) -> Iterator[Choice]:
    most = max(settings.pool.engines, spec.resources.rollout_gpus.min)
    yield Choice("/resources/rollout_gpus/max", most, "all of the pool")


def _of_learning(spec: JobSpec, model: BaseModelInfo) -> Iterator[Choice]:
    loss = spec.algorithm.loss
    is_dapo = loss.type == "dapo"
    yield Choice(
        "/algorithm/loss/clip_high",
        0.28 if is_dapo else loss.clip_low,
        "DAPO raises the upper clip range" if is_dapo else "GRPO clips symmetrically",
    )
    is_small = (model.parameters or 0) < SMALL_MODEL_PARAMETERS
    small = "full-weight training of a model below 10M parameters"
    large = "full-weight training of a model above 10M parameters"
    yield Choice("/optimizer/lr", 3e-4 if is_small else 1e-6, small if is_small else large)


def _of_scheduling(spec: JobSpec) -> Iterator[Choice]:
    yield Choice("/scheduling/async_ratio", *ratio_of(spec))
    yield Choice("/scheduling/order", *order_of(spec))
