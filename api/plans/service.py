"""Verbs of plans: check the question, bound it, leave it to a chore."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.jobs.hints import spec_findings
from api.jobs.outcome import Outcome
from api.jobs.scheduling import check_scheduling
from api.jobs.service import check
from api.jobs.sources import base_named
from api.jobs.starts import merged
from api.jobs.storable import unstorable
from api.models.service import bases
from api.operations.service import operation_of
from api.plans.limits import STEPS_DEFAULT, too_large, unmodelled
from api.problems import Finding, conflict, invalid, not_found
from infra.names import PLAN
from stores import checkpoints, jobs
from stores.unit_of_work import AsyncConnection
from venusrl.models.checkpoints import Operation
from venusrl.models.job_spec import JobSpec
from venusrl.models.plans import Plan, PlanCreate

RUNS_OF_WHAT_IF: Final = 2
"""Forecasts of a what-if: the unchanged settings come first."""


def plan_of(operation: Operation) -> Plan:
    """Wire form of a plan from its operation."""
    return Plan.model_validate(operation.model_dump())


async def create(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, body: PlanCreate
) -> dict[str, Any]:
    """Insert the plan's operation; a chore takes it up. Raises 404, 409, 422."""
    if found := unstorable(body.model_dump()):
        raise invalid(found, "The request holds what cannot be stored.")
    if body.job is not None:
        request = await _what_if(connection, caller, body, body.job)
    else:
        request = await _of_spec(connection, gateway, caller, body)
    started = await checkpoints.start_operation(
        connection, caller.project_id, gateway.ids.new("plan"), PLAN, request
    )
    return plan_of(operation_of(started)).model_dump(mode="json")


async def find(connection: AsyncConnection, caller: ProjectCaller, plan_id: str) -> None:
    """Raise 404 unless it is a plan of the project."""
    row = await checkpoints.find_operation(connection, caller.project_id, plan_id)
    if row is None or row.kind != PLAN:
        raise not_found("plan", plan_id)


async def _what_if(
    connection: AsyncConnection, caller: ProjectCaller, body: PlanCreate, job_id: str
) -> dict[str, Any]:
    row = await jobs.find(connection, caller.project_id, job_id)
    if row is None:
        raise not_found("job", job_id)
    if not await jobs.has_step(connection, job_id):
        detail = "The job has committed no step yet; plan its spec instead, or wait for the first."
        raise conflict(detail, "nothing_recorded")
    if found := unmodelled(body.changes):
        raise invalid(found, "The simulator cannot change that.")
    changed = merged(row.spec, body.changes)
    if findings := _shape(changed):
        raise invalid(findings, "The changed spec has errors.")
    runs = RUNS_OF_WHAT_IF if _is_changed(body) else 1
    steps = _bound([row.spec, changed][:runs], body)
    return {
        **_asked(body),
        "job_id": job_id,
        "spec": row.spec,
        "changed": changed if _is_changed(body) else None,
        "steps": steps,
    }


async def _of_spec(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, body: PlanCreate
) -> dict[str, Any]:
    outcome = await check(connection, gateway, caller, body.spec)
    if outcome.spec is None:
        placed = [
            Finding(f"/spec{one.pointer}", one.code, one.message, one.hint, one.severity)
            for one in outcome.findings
        ]
        raise invalid(placed, "The job spec has errors.")
    spec = outcome.spec
    known = await bases(connection, gateway, caller.project_id, base_named(spec))
    parameters = known[spec["model"]["base"]].parameters
    steps = _bound([spec], body)
    return {
        **_asked(body),
        "job_id": None,
        "spec": spec,
        "changed": None,
        "steps": steps,
        "parameters": parameters,
    }


def _asked(body: PlanCreate) -> dict[str, Any]:
    kept = body.model_dump(mode="json", include={"pool", "profile", "replicas", "seed"})
    return dict(kept)


def _is_changed(body: PlanCreate) -> bool:
    return bool(body.changes) or body.pool.model_dump(exclude_none=True) != {}


def _shape(spec: Mapping[str, Any]) -> list[Finding]:
    """What of a changed spec no spec may say; its surroundings were checked when it was submitted."""
    outcome = Outcome()
    try:
        check_scheduling(JobSpec.model_validate_json(json.dumps(spec)), outcome)
    except ValidationError as error:
        outcome.findings = spec_findings(error.errors(include_url=False), spec)
    return [
        Finding(f"/changes{one.pointer}", one.code, one.message, one.hint)
        for one in outcome.findings
        if one.severity == "error"
    ]


def _bound(specs: list[Mapping[str, Any]], body: PlanCreate) -> int:
    """Steps to simulate. Raises 422 for a plan that is too large, with the limit."""
    last = min(spec["stop"]["max_steps"] or STEPS_DEFAULT for spec in specs)
    steps = min(body.steps or STEPS_DEFAULT, last)
    sizes = [spec["rollout"]["group_size"] * spec["rollout"]["groups_per_batch"] for spec in specs]
    if found := too_large(steps * sum(sizes) * body.replicas):
        raise invalid(found, "The plan is too large.")
    return steps
