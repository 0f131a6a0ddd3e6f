"""Verbs of plans: check the question, bound it, leave it to a chore."""

from dataclasses import replace
from typing import Any

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.jobs.service import check
from api.jobs.sources import base_named
from api.jobs.storable import unstorable
from api.models.service import bases
from api.operations.service import operation_of
from api.plans.changes import changed_of
from api.plans.pools import settings_for, without_signal
from api.plans.steps import recorded_steps, step_rollouts, steps_of
from api.problems import conflict, invalid, not_found
from infra.names import PLAN
from infra.settings import Settings
from stores import checkpoints, jobs
from stores.unit_of_work import AsyncConnection
from venusrl.models.checkpoints import Operation
from venusrl.models.plans import Plan, PlanCreate


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
        request = await _what_if(connection, gateway.settings, caller, body, body.job)
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
    connection: AsyncConnection,
    settings: Settings,
    caller: ProjectCaller,
    body: PlanCreate,
    job_id: str,
) -> dict[str, Any]:
    row = await jobs.find(connection, caller.project_id, job_id)
    if row is None:
        raise not_found("job", job_id)
    made = await jobs.steps_made(connection, job_id)
    if not made:
        detail = "The job has committed no step yet; plan its spec instead, or wait for the first."
        raise conflict(detail, "nothing_recorded")
    asked = {**_asked(body), "job_id": job_id, "spec": row.spec, "changed": None}
    if not _is_changed(body):
        unchanged = recorded_steps(row.spec, made, body)
        return asked | {"steps": unchanged, "unchanged_steps": unchanged}
    changed = changed_of(row.spec, body.changes, body.pool, settings)
    steps = steps_of(changed.spec, body)
    cost = steps * step_rollouts(changed.spec) * body.replicas
    return asked | {
        "changed": changed.spec,
        "chosen": [[pointer, str(value), reason] for pointer, value, reason in changed.chosen],
        "has_engines": changed.has_engines,
        "steps": steps,
        "unchanged_steps": recorded_steps(row.spec, made, body, cost),
    }


async def _of_spec(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, body: PlanCreate
) -> dict[str, Any]:
    around = settings_for(gateway.settings, body.pool)
    outcome = await check(connection, gateway, caller, body.spec, settings=around)
    if outcome.spec is None:
        placed = [replace(one, pointer=f"/spec{one.pointer}") for one in outcome.findings]
        raise invalid(placed, "The job spec has errors.")
    spec = outcome.spec
    if found := without_signal(spec["rollout"]["group_size"], "/spec"):
        raise invalid(found, "No plan of that job ends.")
    known = await bases(connection, gateway, caller.project_id, base_named(spec))
    parameters = known[spec["model"]["base"]].parameters
    steps = steps_of(spec, body)
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
