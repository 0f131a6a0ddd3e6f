"""From a submitted spec to findings and a normalised spec with every `auto` resolved and explained."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from api.jobs.hints import spec_findings
from api.jobs.sources import check_datasets
from api.problems import Finding, escaped, near_names
from infra.settings import Settings
from venusrl.models.checkpoints import BaseModelInfo
from venusrl.models.job_spec import JobSpec

GRADING_RESERVE: Final = 1
"""Sandboxes of the pool that agents never get; the same number as the scheduler's."""

DEPTH_MAX: Final = 32
"""Levels of a spec; an environment's config has the rest below its own four."""

SMALL_MODEL_PARAMETERS: Final = 10_000_000
"""Below it full-weight training takes the larger default learning rate."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a spec is checked against."""

    models: Mapping[str, BaseModelInfo]
    environments: Mapping[str, list[Any]]
    """Version rows by environment name, oldest first."""
    settings: Settings
    model_refs: Sequence[str] = ()
    """Names and references of the project's models, for near names."""
    datasets: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Version rows of the project's datasets that the spec names, oldest first."""


@dataclass(slots=True)
class Outcome:
    """What validation found. `spec` is None when there is an error."""

    findings: list[Finding] = field(default_factory=list)
    resolved: list[tuple[str, Any, str]] = field(default_factory=list)
    spec: dict[str, Any] | None = None
    version: Any = None
    """Row of the environment version that the job uses."""

    def error(self, pointer: str, code: str, message: str, hint: str = "") -> None:
        """Add an error."""
        self.findings.append(Finding(pointer, code, message, hint))

    def warn(self, pointer: str, code: str, message: str, hint: str = "") -> None:
        """Add a warning."""
        self.findings.append(Finding(pointer, code, message, hint, "warning"))

    @property
    def is_valid(self) -> bool:
        """No finding is an error."""
        return all(one.severity != "error" for one in self.findings)


def validate(body: Any, around: Surroundings) -> Outcome:
    """Check and normalise a submitted spec."""
    outcome = Outcome(findings=unstorable(body))
    if outcome.findings:
        return outcome
    try:
        spec = JobSpec.model_validate(body)
    except ValidationError as error:
        outcome.findings = spec_findings(error.errors(include_url=False), body)
        return outcome
    normal = spec.model_dump(mode="json")
    _check_model(spec, around, outcome)
    _check_environment(spec, normal, around, outcome)
    _check_rollout(spec, around, outcome)
    _check_resources(spec, around, outcome)
    if outcome.is_valid:
        _resolve(spec, normal, around, outcome)
        outcome.spec = normal
    return outcome


def unstorable(value: Any, pointer: str = "", depth: int = 0) -> list[Finding]:
    """What of a JSON document no database column can hold: the reader of JSON lets it pass."""
    if depth > DEPTH_MAX:
        return [Finding(pointer, "too_deep", f"This is nested more than {DEPTH_MAX} levels deep.")]
    match value:
        case str() if "\x00" in value or not _is_unicode(value):
            return [Finding(pointer, "bad_text", "The text holds a NUL or half a character.")]
        case float() if not math.isfinite(value):
            return [Finding(pointer, "not_finite", f"{value} is no JSON number.")]
        case dict():
            found = [one for key in value for one in unstorable(key, pointer, depth + 1)]
            for key, inner in value.items():
                found += unstorable(inner, f"{pointer}/{escaped(key)}", depth + 1)
            return found
        case list():
            return [
                one
                for number, inner in enumerate(value)
                for one in unstorable(inner, f"{pointer}/{number}", depth + 1)
            ]
        case _:
            return []


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_model(spec: JobSpec, around: Surroundings, outcome: Outcome) -> None:
    model = around.models.get(spec.model.base)
    if model is None:
        near = near_names(spec.model.base, [*around.models, *around.model_refs])
        message = f"There is no model {spec.model.base!r}."
        outcome.error("/model/base", "unknown_model", message, f"See GET /v1/models.{near}")
        return
    wanted = spec.model.context_tokens
    if wanted is not None and wanted > model.context_tokens:
        message = f"{spec.model.base} has a context of {model.context_tokens} tokens."
        outcome.error("/model/context_tokens", "context_too_long", message)


def _check_environment(
    spec: JobSpec, normal: dict[str, Any], around: Surroundings, outcome: Outcome
) -> None:
    pointer = "/environments/0/ref"
    name, _, number = spec.environments[0].ref.partition("@")
    versions = around.environments.get(name)
    if not versions:
        near = near_names(name, list(around.environments))
        message = f"There is no environment {name!r} in this project."
        outcome.error(pointer, "unknown_environment", message, f"See GET /v1/environments.{near}")
        return
    ready = [row for row in versions if row.state == "ready"]
    found = [row for row in ready if not number or row.version == int(number)]
    if not found:
        states = ", ".join(f"{row.version}: {row.state}" for row in versions[-5:])
        message = f"Environment {name!r} has no such ready version."
        outcome.error(pointer, "version_not_ready", message, f"Newest versions: {states}.")
        return
    version = outcome.version = found[-1]
    normal["environments"][0]["ref"] = f"{name}@{version.version}"
    if not number:
        reason = "the newest ready version"
        outcome.resolved.append((pointer, f"{name}@{version.version}", reason))
    provided = check_datasets(spec, normal, around.datasets, outcome)
    _check_splits(spec, {**version.splits, **provided}, outcome)


def _check_splits(spec: JobSpec, splits: Mapping[str, int], outcome: Outcome) -> None:
    wanted = [("/environments/0/split", spec.environments[0].split)]
    if spec.evaluation is not None:
        wanted.append(("/evaluation/split", spec.evaluation.split))
    for pointer, split in wanted:
        if split not in splits:
            message = f"The environment has no split {split!r}."
            outcome.error(
                pointer, "unknown_split", message, f"It has: {', '.join(sorted(splits))}."
            )
    if spec.evaluation is not None and spec.evaluation.split == spec.environments[0].split:
        message = "The evaluation uses the split that the job trains on."
        outcome.warn("/evaluation/split", "not_held_out", message)


def _check_rollout(spec: JobSpec, around: Surroundings, outcome: Outcome) -> None:
    size = spec.rollout.group_size
    if size == 1:
        message = "A group of one has no signal: its advantage is zero."
        outcome.warn("/rollout/group_size", "no_signal", message, "Use at least 2.")
    least = spec.rollout.on_failure.min_group_size
    if isinstance(least, int) and least > size:
        message = f"min_group_size {least} is above group_size {size}."
        outcome.error("/rollout/on_failure/min_group_size", "above_group_size", message)
    if spec.scheduling.max_staleness > 0 and spec.algorithm.correction.type == "none":
        message = "An asynchronous job needs an importance correction."
        hint = "Set algorithm.correction.type to tis, or scheduling.max_staleness to 0."
        outcome.error("/algorithm/correction/type", "correction_needed", message, hint)


def _check_resources(spec: JobSpec, around: Surroundings, outcome: Outcome) -> None:
    pool, limits = around.settings.pool, around.settings.limits
    wanted = spec.resources.rollout_gpus
    if wanted.min > pool.engines:
        message = f"The pool has {pool.engines} engine hosts; the job needs {wanted.min}."
        outcome.error("/resources/rollout_gpus/min", "never_fits", message)
    if isinstance(wanted.max, int) and wanted.max < wanted.min:
        message = f"max {wanted.max} is below min {wanted.min}."
        outcome.error("/resources/rollout_gpus/max", "below_min", message)
    room = limits.sandboxes * pool.nodes - GRADING_RESERVE
    if spec.rollout.group_size > room:
        message = f"A group needs {spec.rollout.group_size} sandboxes; the pool gives {room}."
        outcome.error("/rollout/group_size", "never_fits", message)


def _resolve(spec: JobSpec, normal: dict[str, Any], around: Surroundings, outcome: Outcome) -> None:
    def put(pointer: str, value: Any, reason: str) -> None:
        *path, last = pointer.strip("/").split("/")
        place = normal
        for part in path:
            place = place[part]
        if place[last] == "auto":
            place[last] = value
            outcome.resolved.append((pointer, value, reason))

    is_synchronous = spec.scheduling.max_staleness == 0 and spec.scheduling.async_ratio in (
        "auto",
        1.0,
    )
    is_dapo = spec.algorithm.loss.type == "dapo"
    put(
        "/algorithm/loss/clip_high",
        0.28 if is_dapo else spec.algorithm.loss.clip_low,
        "DAPO raises the upper clip range" if is_dapo else "GRPO clips symmetrically",
    )
    half = max(1, spec.rollout.group_size // 2)
    put("/rollout/on_failure/min_group_size", half, "half of the group")
    model = around.models[spec.model.base]
    is_small = (model.parameters or 0) < SMALL_MODEL_PARAMETERS
    put(
        "/optimizer/lr",
        3e-4 if is_small else 1e-6,
        "full-weight training of a model below 10M parameters" if is_small else "the field's rate",
    )
    put(
        "/scheduling/async_ratio",
        1.0 if is_synchronous else 1.5,
        "synchronous: nothing runs ahead" if is_synchronous else "half a batch ahead",
    )
    put(
        "/scheduling/order",
        "longest" if is_synchronous else "oldest",
        "makespan counts" if is_synchronous else "bounds staleness best",
    )
    put("/resources/rollout_gpus/max", around.settings.pool.engines, "all of the pool")
