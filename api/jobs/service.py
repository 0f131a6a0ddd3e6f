"""Verbs of jobs."""

import hashlib
import json
from typing import Any

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.jobs.validation import Outcome, Surroundings, validate
from api.problems import Problem, conflict, invalid, not_found
from api.system.registry import models
from domain.states import TERMINAL, JobState
from infra.names import PREPARE_JOB
from stores import checkpoints, environments, events, jobs
from stores.environments import Owner
from stores.jobs import NewAttempt, NewJob
from stores.unit_of_work import AsyncConnection
from venusrl.models.common import Finding
from venusrl.models.jobs import Failure, Job, JobPatch, Resolved, Restart, Validation


def job_of(row: Any) -> Job:
    """Wire form of a job row joined with its attempt's number."""
    return Job(
        id=row.id,
        project_id=row.project_id,
        name=row.name,
        state=row.state,
        desired=row.desired,
        attempt_id=row.attempt_id,
        attempt=row.attempt_number,
        generation=row.generation,
        observed_generation=row.observed_generation,
        spec=row.spec,
        labels=row.labels,
        queue_reason=row.queue_reason,
        queue_position=row.queue_position,
        failure=None if row.failure is None else Failure.model_validate(row.failure),
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def etag_of(row: Any) -> str:
    """Changes with everything that PATCH may change, and with the generation."""
    text = json.dumps([row.generation, row.name, row.labels], sort_keys=True)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:16]}"'


def cursor_of(row: Any) -> str:
    """The place of a metric point, for the next page's `after`."""
    return f"{row.attempt_number}:{row.step}:{row.name}"


def place_of(cursor: str | None) -> tuple[int, int, str] | None:
    """The place that a cursor names."""
    if cursor is None:
        return None
    number, step, name = cursor.split(":", 2)
    return int(number), int(step), name


async def check(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, body: Any
) -> Outcome:
    """Validate a submitted spec against the project and the pool."""
    names = await environments.names(connection, caller.project_id)
    versions = {
        name: list(await environments.versions(connection, caller.project_id, name))
        for name in names
    }
    return validate(body, Surroundings(models(), versions, gateway.settings))


def validation_of(outcome: Outcome) -> Validation:
    """Wire form of an outcome."""
    return Validation(
        valid=outcome.is_valid,
        findings=[Finding.model_validate(one.as_json()) for one in outcome.findings],
        spec=outcome.spec,
        resolved=[Resolved(pointer=p, value=v, reason=r) for p, v, r in outcome.resolved],
    )


async def create(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, body: Any
) -> dict[str, Any]:
    """Insert job, attempt, event and the operation that prepares its task lists: one commit."""
    outcome = await check(connection, gateway, caller, body)
    if outcome.spec is None:
        raise invalid(outcome.findings, "The job spec has errors.")
    owner = Owner(caller.organization_id, caller.project_id)
    new = NewJob(
        id=gateway.ids.new("job"),
        attempt_id=gateway.ids.new("att"),
        name=outcome.spec["name"],
        spec=outcome.spec,
        submitted_spec=body,
        labels=outcome.spec["labels"],
        environment_version_id=outcome.version.id,
    )
    row = await jobs.create(connection, owner, new)
    await checkpoints.start_operation(
        connection, caller.project_id, gateway.ids.new("op"), PREPARE_JOB, {"job_id": new.id}
    )
    return job_of(row).model_dump(mode="json")


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
    """The platform paused the job, which its user still wants to run, and nobody resumed it yet."""
    is_paused = JobState(row.state) in (JobState.PAUSING, JobState.PAUSED)
    return is_paused and row.generation <= row.observed_generation


async def restart(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[str, Restart],
) -> dict[str, Any]:
    """Make a new attempt from a checkpoint (the newest one by default) of an ended job."""
    job_id, body = asked
    row = await locked(connection, caller, job_id)
    if JobState(row.state) not in TERMINAL:
        raise conflict(f"The job has not ended ({row.state}); cancel it first.", "job_active")
    if body.checkpoint is not None:
        start = await checkpoints.find(connection, caller.project_id, body.checkpoint)
        if start is None or start.job_id != job_id:
            raise not_found("checkpoint of this job", body.checkpoint)
    else:
        start = await checkpoints.newest(connection, caller.project_id, job_id)
    if start is not None and start.state != "ready":
        raise conflict(f"The checkpoint is {start.state}.", "checkpoint_not_ready")
    new = NewAttempt(
        id=gateway.ids.new("att"),
        from_checkpoint_id=None if start is None else start.id,
        base_step=0 if start is None else start.step,
        next_ordinal=0 if start is None else start.next_ordinal,
        unconsumed=() if start is None else start.unconsumed,
    )
    if new.base_step >= row.spec["stop"]["max_steps"]:
        detail = f"The checkpoint's step {new.base_step} is the job's last step already."
        raise Problem(409, "nothing_left", detail)
    await jobs.restart(connection, caller.project_id, job_id, new)
    return job_of(await locked(connection, caller, job_id)).model_dump(mode="json")


async def patch(
    connection: AsyncConnection,
    caller: ProjectCaller,
    job_id: str,
    body: JobPatch,
    etag: str | None,
) -> Any:
    """Change name or labels; with If-Match only if nobody changed them meanwhile."""
    row = await locked(connection, caller, job_id)
    if etag is not None and etag not in ("*", etag_of(row)):
        raise Problem(412, "precondition_failed", "The job changed since it was read.")
    values = body.model_dump(exclude_none=True)
    if values:
        await jobs.patch(connection, caller.project_id, job_id, values)
        await events.append(connection, job_id, "job.changed", {"fields": sorted(values)})
    return await locked(connection, caller, job_id)
