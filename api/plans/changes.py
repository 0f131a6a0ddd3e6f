"""The spec of a what-if: changes laid over a recorded one, checked and resolved as a job's is."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from api.jobs.hints import spec_findings
from api.jobs.outcome import Outcome
from api.jobs.resolution import put_at, settle, value_at
from api.jobs.scheduling import check_scheduling
from api.jobs.starts import laid_over
from api.plans.limits import leaves, unmodelled
from api.plans.pools import NO_BOUND, misfits, settings_for, without_signal
from api.problems import Finding, invalid
from infra.settings import Settings
from venusrl.models.job_spec import JobSpec
from venusrl.models.plans import PlanPool

UNKNOWN: Final = "extra_forbidden"
"""Code of a field that no spec has."""

ENGINES: Final = "/resources/rollout_gpus/"


AUTO: Final = frozenset(
    {"/scheduling/async_ratio", "/scheduling/order", "/resources/rollout_gpus/max"}
)
"""Places where a job's `auto` was resolved by its neighbours, or by the pool."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A changed spec with nothing open, and what was chosen for it."""

    spec: dict[str, Any]
    chosen: list[tuple[str, Any, str]]
    """Pointer, value and reason of each `auto` that is not what it was."""
    has_engines: bool
    """How many engines the job takes was changed."""


def changed_of(
    recorded: Mapping[str, Any], changes: Mapping[str, Any], pool: PlanPool, settings: Settings
) -> Changed:
    """The changed spec on a pool. Raises 422 with all findings of the first check that has any."""
    laid = laid_over(_opened(recorded, changes), changes)
    spec, wrong = _read(laid)
    unknown = [
        replace(one, message=f"A job spec has no field {one.pointer}.")
        for one in wrong
        if one.code == UNKNOWN
    ]
    _refuse(
        [_below(one) for one in unknown]
        + [
            one
            for one in unmodelled(changes)
            if not any(_is_within(one.pointer, f"/changes{other.pointer}") for other in unknown)
        ],
        "The simulator cannot change that.",
    )
    _refuse([_below(one) for one in wrong], "The changed spec has errors.")
    assert spec is not None, "what could not be read has findings"
    places = list(leaves(changes))
    has_engines = any(one.startswith(ENGINES) for one in places)
    around = settings_for(settings, pool)
    is_bound = has_engines and pool.engines is not None
    found = misfits(spec, around if is_bound else _unbound(around), places)
    found += without_signal(spec.rollout.group_size, "/changes")
    _refuse(found, "The changed job never runs on that pool.")
    normal = spec.model_dump(mode="json")
    chosen = [one for one in settle(spec, normal, around) if value_at(recorded, one[0]) != one[1]]
    return Changed(normal, chosen, has_engines)


def _opened(recorded: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """With `auto` back where what is changed beside it decides what was chosen there."""
    made: dict[str, Any] = json.loads(json.dumps(recorded))
    for one in recorded.get("resolved") or ():
        pointer = one["pointer"]
        if pointer in AUTO and pointer.split("/")[1] in changes:
            put_at(made, pointer, "auto")
    return made


def _read(document: Mapping[str, Any]) -> tuple[JobSpec | None, list[Finding]]:
    """The spec, and what of it no spec may say; its surroundings were checked when it was submitted."""
    try:
        spec = JobSpec.model_validate_json(json.dumps(document))
    except ValidationError as error:
        return None, spec_findings(error.errors(include_url=False), document)
    outcome = Outcome()
    check_scheduling(spec, outcome)
    return spec, [one for one in outcome.findings if one.severity == "error"]


def _unbound(settings: Settings) -> Settings:
    """With engines for all: a what-if asks about machines, and only two answers can contradict."""
    return replace(settings, pool=replace(settings.pool, engines=NO_BOUND))


def _below(one: Finding) -> Finding:
    return replace(one, pointer=f"/changes{one.pointer}")


def _is_within(pointer: str, above: str) -> bool:
    return pointer == above or pointer.startswith(f"{above}/")


def _refuse(findings: list[Finding], detail: str) -> None:
    if findings:
        raise invalid(findings, detail)
