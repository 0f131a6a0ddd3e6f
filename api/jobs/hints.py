"""Hints on the fields of a spec: what was probably meant, and what is known at its place."""

import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

from api.problems import Finding, escaped, findings_of, near_names
from venusrl.models.job_spec import JobSpec

_QUOTED: Final = re.compile(r"'([^']*)'")

_UNIONS: Final = (Union, types.UnionType)


def spec_findings(errors: Sequence[Any], body: Any) -> list[Finding]:
    """Findings of a spec's pydantic errors, with hints; one finding a place where `auto` may stand."""
    found: dict[str, Finding] = {}
    for error in errors:
        path = _path_in(body, error)
        pointer = "".join(f"/{escaped(str(part))}" for part in path)
        (finding,) = findings_of([error])
        if pointer in found:
            hints = f"{found[pointer].hint} Or: {finding.message}.".strip()
            found[pointer] = replace(found[pointer], hint=hints)
        else:
            hint = _hint(error, path) or finding.hint
            found[pointer] = replace(finding, pointer=pointer, hint=hint)
    return list(found.values())


def _path_in(body: Any, error: Mapping[str, Any]) -> list[str | int]:
    """The error's location without the names that pydantic adds for the branches of a union."""
    path: list[str | int] = []
    *_, last = error["loc"] or ("",)
    for part in error["loc"]:
        is_inside = (isinstance(body, dict) and part in body) or (
            isinstance(body, list) and isinstance(part, int) and part < len(body)
        )
        if is_inside:
            path.append(part)
            body = body[part]
        elif part is last and error["type"] == "missing" and isinstance(body, dict):
            path.append(part)
    return path


def _hint(error: Mapping[str, Any], path: Sequence[str | int]) -> str:
    code = error["type"]
    if code == "extra_forbidden":
        *parent, name = path
        known = fields_at(parent)
        near = near_names(str(name), known).strip()
        return near or f"Known here: {', '.join(known)}."
    if code == "literal_error" and isinstance(error["input"], str):
        known = _QUOTED.findall(str(error.get("ctx", {}).get("expected", "")))
        near = near_names(error["input"], known).strip()
        return near or description_at(path)
    if code == "model_type":
        return f"A mapping with any of: {', '.join(fields_at(path))}."
    return description_at(path)


def description_at(path: Sequence[str | int]) -> str:
    """What the field at this place is for; of a list's item, what the list is for."""
    named = [at for at, part in enumerate(path) if isinstance(part, str)]
    for at in reversed(named):
        annotation: Any = JobSpec
        for part in path[:at]:
            annotation = _inside(annotation, part)
        model, name = _model_in(annotation), str(path[at])
        if model is not None and name in model.model_fields:
            return model.model_fields[name].description or ""
    return ""


def fields_at(path: Sequence[str | int]) -> list[str]:
    """Names of the fields that the spec has at this place."""
    model: Any = JobSpec
    for part in path:
        model = _inside(model, part)
    found = _model_in(model)
    return [] if found is None else sorted(found.model_fields)


def _inside(annotation: Any, part: str | int) -> Any:
    """The annotation of a field, of a list's item or of a mapping's value."""
    for one in _branches(annotation):
        if isinstance(one, type) and issubclass(one, BaseModel) and part in one.model_fields:
            return one.model_fields[str(part)].annotation
        arguments = get_args(one)
        if get_origin(one) is list and isinstance(part, int):
            return arguments[0]
        if get_origin(one) is dict and isinstance(part, str):
            return arguments[1]
    return None


def _branches(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _branches(get_args(annotation)[0])
    if get_origin(annotation) in _UNIONS:
        return [leaf for one in typing.get_args(annotation) for leaf in _branches(one)]
    return [annotation]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    found = (b for b in _branches(annotation) if isinstance(b, type) and issubclass(b, BaseModel))
    return next(found, None)
