"""Hints on the fields of a spec: what was probably meant, and what a later version will take."""

import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel

from api.problems import Finding, escaped, findings_of, near_names
from venusrl.models.job_spec import JobSpec

LATER_FIELDS: Final = frozenset(
    {
        "/model/on_history_rewrite",
        "/model/training/rank",
        "/model/training/alpha",
        "/model/training/targets",
        "/environments/*/filter",
        "/environments/*/harness",
        "/environments/*/resources",
        "/judges",
        "/algorithm/task_sampling",
        "/evaluation/environments",
        "/evaluation/select_best",
        "/checkpoints/ttl_days",
        "/checkpoints/export",
        "/resources/trainer_gpus",
        "/resources/tensor_parallel",
        "/resources/placement",
        "/resources/priority",
        "/stop/max_epochs",
        "/stop/target_eval",
        "/budget",
        "/retention",
        "/secrets",
        "/trackers",
    }
)
"""Fields of the whole spec that this version refuses, so that none is silently without effect."""

LATER_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "/model/training/type": ("lora",),
    "/algorithm/advantage": ("rloo", "reinforce_pp"),
}
"""Likewise values."""

NOT_YET: Final = "This version does not support it yet; remove it."

_INDEX: Final = re.compile(r"/\d+(?=/|$)")


def spec_findings(errors: Sequence[Any], body: Any) -> list[Finding]:
    """Findings of a spec's pydantic errors, with hints; one finding a place where `auto` may stand."""
    found: dict[str, Finding] = {}
    for error in errors:
        path = _path_in(body, error)
        pointer = "".join(f"/{escaped(str(part))}" for part in path)
        (finding,) = findings_of([error])
        hint = _hint(error, path, _INDEX.sub("/*", pointer))
        if pointer in found:
            found[pointer] = replace(found[pointer], hint=f"Or: {finding.message}.")
        else:
            found[pointer] = replace(finding, pointer=pointer, hint=hint or finding.hint)
    return list(found.values())


def _path_in(body: Any, error: Mapping[str, Any]) -> list[str | int]:
    """The error's location without the names that pydantic adds for the branches of a union."""
    path: list[str | int] = []
    for part in error["loc"]:
        is_inside = (isinstance(body, dict) and part in body) or (
            isinstance(body, list) and isinstance(part, int) and part < len(body)
        )
        if is_inside:
            path.append(part)
            body = body[part]
        elif isinstance(body, dict) and error["type"] == "missing":
            path.append(part)
            break
        else:
            break
    return path


def _hint(error: Mapping[str, Any], path: Sequence[str | int], place: str) -> str:
    code = error["type"]
    if code == "extra_forbidden":
        if place in LATER_FIELDS:
            return NOT_YET
        *parent, name = path
        known = fields_at(parent)
        near = near_names(str(name), known).strip()
        return near or f"Known here: {', '.join(known)}."
    if error["input"] in LATER_VALUES.get(place, ()):
        return NOT_YET
    if code == "too_long" and place == "/environments":
        return "This version trains on one environment a job."
    return ""


def fields_at(path: Sequence[str | int]) -> list[str]:
    """Names of the fields that the spec has at this place."""
    model: type[BaseModel] | None = JobSpec
    for part in path:
        if model is None:
            return []
        if isinstance(part, str):
            field = model.model_fields.get(part)
            model = None if field is None else _model_in(field.annotation)
    return [] if model is None else sorted(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(inner) for inner in typing.get_args(annotation))
    return next((one for one in found if one is not None), None)
