"""Verbs of jobs: validate, create, pause, resume, cancel, change. Restart and branch: `starts.py`."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.jobs.outcome import Outcome, Surroundings
from api.jobs.resolution import put_at, value_at
from api.jobs.sources import base_named, known_datasets
from api.jobs.validation import validate
from api.jobs.views import etag_of, job_of, matches
from api.models.service import bases, known_refs
from api.problems import Problem, conflict, invalid, not_found
from domain.states import TERMINAL, JobState
from infra.names import PREPARE_JOB
from infra.settings import Settings
from stores import checkpoints, environments, events, jobs, secrets
from stores.environments import Owner
from stores.jobs import NewJob, Start
from stores.unit_of_work import AsyncConnection
from venusrl.models.jobs import JobPatch

PLACES: Final[Mapping[str, str]] = {
    "name": "/name",
    "labels": "/labels",
    "priority": "/resources/priority",
    "max_steps": "/stop/max_steps",
    "budget": "/budget",
}
"""Where the fields of a PATCH stand in the spec."""


async def check(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    body: Any,
    *,
    settings: Settings | None = None,
) -> Outcome:
    """Validate a submitted spec against the project and the pool, or another pool by `settings`."""
    names = await environments.names(connection, caller.project_id)
    versions = {
        name: list(await environments.versions(connection, caller.project_id, name))
        for name in names
    }
    around = Surroundings(
        await bases(connection, gateway, caller.project_id, base_named(body)),
        versions,
        settings or gateway.settings,
        frozenset(await secrets.names(connection, caller.project_id)),
        model_refs=await known_refs(connection, caller.project_id),
        datasets=await known_datasets(connection, caller.project_id, body),
    )
    return validate(body, around)


async def create(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, body: Any
) -> dict[str, Any]:
    """Create a job from a submitted spec; nothing is made when there is an error."""
    outcome = await check(connection, gateway, caller, body)
    if outcome.spec is None:
        raise invalid(outcome.findings, "The job spec has errors.")
    return await insert(connection, gateway, caller, (outcome, body, Start()))


async def insert(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[Outcome, Any, Start],
    **created: Any,
) -> dict[str, Any]:
    """Insert job, attempt, event and the operation that prepares its task lists: one commit."""
    outcome, body, start = asked
    assert outcome.spec is not None, "only a valid spec becomes a job"
    owner = Owner(caller.organization_id, caller.project_id)
    if outcome.findings:
        created["findings"] = [one.as_json() for one in outcome.findings]
    new = NewJob(
        id=gateway.ids.new("job"),
        attempt_id=gateway.ids.new("att"),
        name=outcome.spec["name"],
        spec=outcome.spec,
        submitted_spec=body,
        labels=outcome.spec["labels"],
        environment_version_id=outcome.version.id,
        start=start,
        created=created,
    )
    row = await jobs.create(connection, owner, new)
    await checkpoints.start_operation(
        connection, caller.project_id, gateway.ids.new("op"), PREPARE_JOB, {"job_id": new.id}
    )
    return job_of(row, outcome.findings).model_dump(mode="json")


async def locked(connection: AsyncConnection, caller: ProjectCaller, job_id: str) -> Any:
    """The job's row, locked. Raises 404."""
    row = await jobs.find(connection, caller.project_id, job_id, lock=True)
    if row is None:
        raise not_found("job", job_id)
    return row


async def want(
    connection: AsyncConnection, caller: ProjectCaller, job_id: str, desired: str
) -> dict[str, Any]:
    """Pause, resume or cancel; asking for what is wanted already changes nothing."""
    row = await locked(connection, caller, job_id)
    state = JobState(row.state)
    if state in TERMINAL:
        raise conflict(f"The job has ended ({state}).", "job_ended")
    if row.desired == "cancel" and desired != "cancel":
        raise conflict("The job is being cancelled.", "job_cancelling")
    if row.desired != desired or (desired == "run" and _has_paused_itself(row)):
        await jobs.want(connection, caller.project_id, job_id, desired)
        if state is JobState.VALIDATING and desired == "cancel":
            await jobs.end_unstarted(connection, caller.project_id, job_id)
        row = await locked(connection, caller, job_id)
    return job_of(row).model_dump(mode="json")


def _has_paused_itself(row: Any) -> bool:
    """The platform paused the job, for too many failures or at its budget, and nobody resumed it yet."""
    is_paused = JobState(row.state) in (JobState.PAUSING, JobState.PAUSED)
    return is_paused and row.desired_generation <= row.observed_generation


async def patch(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[str, JobPatch],
    etag: str | None,
) -> Any:
    """Change the safe fields; with If-Match only if nobody changed them meanwhile.

    The coordinator takes new limits up by the raised generation. An ended job keeps its generation:
    what changes holds from its restart on.
    """
    job_id, body = asked
    row = await locked(connection, caller, job_id)
    if etag is not None and not matches(etag_of(row), etag):
        raise Problem(412, "precondition_failed", "The job changed since it was read.")
    changes = body.model_dump(mode="json", include=body.model_fields_set)
    spec = changed(row.spec, changes)
    if spec == row.spec:
        return row
    await _check_changes(connection, gateway, caller, (spec, changes))
    is_steering = row.state not in TERMINAL and any(
        value_at(spec, PLACES[name]) != value_at(row.spec, PLACES[name])
        for name in changes.keys() - {"name", "labels"}
    )
    await jobs.patch(connection, caller.project_id, job_id, spec, raises_generation=is_steering)
    said = {"fields": sorted(changes), **{k: v for k, v in changes.items() if k != "labels"}}
    await events.append(connection, job_id, "job.changed", said)
    return await locked(connection, caller, job_id)


async def delete(connection: AsyncConnection, caller: ProjectCaller, job_id: str) -> None:
    """Hide an ended job; checkpoints that are neither kept nor needed expire. Twice is once."""
    if await jobs.is_deleted(connection, caller.project_id, job_id):
        return
    row = await locked(connection, caller, job_id)
    if JobState(row.state) not in TERMINAL:
        raise conflict(f"The job is {row.state}; cancel it, and delete it then.", "job_active")
    if not await jobs.has_ended(connection, caller.project_id, job_id):
        raise conflict("The job still gives back what it held; try again soon.", "job_active")
    await checkpoints.expire_unneeded(connection, job_id)
    await jobs.delete(connection, caller.project_id, job_id)


def changed(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with the changed fields in their places."""
    made = copy.deepcopy(dict(spec))
    for name, value in changes.items():
        put_at(made, PLACES[name], value)
    kept = [
        one for one in made.get("resolved", ()) if value_at(made, one["pointer"]) == one["value"]
    ]
    if "resolved" in made:
        made["resolved"] = kept
    return made


async def _check_changes(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[Mapping[str, Any], Mapping[str, Any]],
) -> None:
    """Refuse what creation would refuse of the changed fields; the rest stands as it was accepted."""
    spec, changes = asked
    outcome = await check(connection, gateway, caller, spec)
    found = []
    for one in outcome.findings:
        for name in changes:
            place = PLACES[name]
            if one.severity == "error" and f"{one.pointer}/".startswith(f"{place}/"):
                found.append(replace(one, pointer=f"/{name}{one.pointer.removeprefix(place)}"))
    if found:
        raise invalid(found, "The change has errors.")
