"""Routes of a job's schedule and profile: what the leader says of it, joined with its rows."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from api.auth.caller import ProjectCaller, Viewer
from api.gateway import Gateway, GatewayDep
from api.problems import not_found
from domain.ids import group_of
from domain.schedule import Lane, RolloutStage, WaitReason
from domain.states import TERMINAL, JobState
from stores import jobs, rollouts, schedules
from venusrl.models.schedule import (
    NextGroup,
    Profile,
    RolloutSchedule,
    Schedule,
    ScheduledGroup,
    ScheduledRollout,
)

ENGINE_GAUGES: Final = ("active", "waiting", "kv_pages_used", "kv_usage", "tokens_per_s")
"""What an engine says of the moment, not of all that it has done."""

BATCH_GAUGES: Final = ("open_groups", "running_rollouts", "waiting_rollouts", "engine_slots")
"""What of a job's groups and rollouts is so only while it runs."""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

GROUPS_MAX: Final = 200
"""Groups of one answer; the leader orders no more of them."""


@router.get("/{job_id}/schedule")
async def job_schedule(
    job_id: str,
    caller: Viewer,
    gateway: GatewayDep,
    limit: Annotated[int, Query(ge=1, le=GROUPS_MAX)] = 50,
) -> Schedule:
    """Groups in the order in which they are served, and what each of their rollouts waits for.

    Of an ended job nothing waits. At most `limit` groups are listed, the rest is counted.
    """
    job = await _job(gateway, caller, job_id)
    async with gateway.database.begin() as connection:
        row = await schedules.find(connection, caller.project_id, job_id)
        if row is None or _has_ended(job):
            lanes = {lane.value: 0 for lane in Lane}
            return Schedule(job_id=job.id, state=job.state, lanes=lanes, groups=[])
        shown = row.head["groups"][:limit]
        names = [one["id"] for one in shown]
        bodies = await schedules.groups(connection, caller.project_id, job_id, names)
    groups = [
        _group(one["id"], bodies[one["id"]], one["eta_s"]) for one in shown if one["id"] in bodies
    ]
    lanes = row.head["lanes"]
    return Schedule(
        job_id=job.id,
        state=job.state,
        written_at=row.written_at,
        filling_step=row.head["filling_step"],
        need=row.head["need"],
        next_group=NextGroup.model_validate(row.head["next_group"]),
        lanes=lanes,
        groups=groups,
        groups_left_out=max(sum(lanes.values()) - len(groups), 0),
    )


@router.get("/{job_id}/schedule/rollouts/{rollout_id}")
async def job_schedule_of_rollout(
    job_id: str, rollout_id: str, caller: Viewer, gateway: GatewayDep
) -> RolloutSchedule:
    """What one rollout of the job waits for, whether its group is listed in the schedule or not."""
    job = await _job(gateway, caller, job_id)
    async with gateway.database.begin() as connection:
        rollout = await rollouts.find(connection, caller.project_id, rollout_id)
        if rollout is None or rollout.job_id != job_id:
            raise not_found("rollout", rollout_id)
        row = await schedules.find(connection, caller.project_id, job_id)
        bodies = await schedules.groups(
            connection, caller.project_id, job_id, [group_of(rollout.id)]
        )
    body = {} if _has_ended(job) else bodies.get(group_of(rollout.id), {})
    found = [one for one in body.get("rollouts", ()) if one["id"] == rollout.id]
    said = _rollout(found[0]) if found else _unsaid(job, rollout)
    return RolloutSchedule(
        **said.model_dump(),
        job_id=job.id,
        job_state=job.state,
        group_id=rollout.group_id,
        lane=body.get("lane"),
        written_at=None if row is None else row.written_at,
    )


@router.get("/{job_id}/profile")
async def job_profile(job_id: str, caller: Viewer, gateway: GatewayDep) -> Profile:
    """How well the job uses what it holds: active batch, keys and values, sandboxes, staleness.

    An ended job holds nothing; what its engines counted is as of `written_at`, at its end.
    """
    job = await _job(gateway, caller, job_id)
    async with gateway.database.begin() as connection:
        row = await schedules.find(connection, caller.project_id, job_id)
        staleness = await schedules.staleness(connection, caller.project_id, job_id)
    said = {} if row is None else dict(row.profile)
    if said and _has_ended(job):
        said = _at_end(said)
    return Profile.model_validate(
        {
            **said,
            "job_id": job.id,
            "state": job.state,
            "written_at": None if row is None else row.written_at,
            "staleness": {str(value): count for value, count in staleness},
        }
    )


def _at_end(said: Mapping[str, Any]) -> dict[str, Any]:
    """Of what was said last before a job's end: what it counted stays, what it held is given back."""
    nobody = {**dict.fromkeys(ENGINE_GAUGES), "rollouts": 0}
    return {
        **said,
        "active_batch": {**said["active_batch"], **dict.fromkeys(BATCH_GAUGES, 0)},
        "kv_usage": None,
        "engines": [{**engine, **nobody} for engine in said["engines"]],
        "sandboxes": {
            **said["sandboxes"],
            "held": 0,
            "declared_bytes": 0,
            "used_bytes": 0,
            "used_bytes_reason": None,
            "free": None,
        },
        "tokens_per_s": 0.0,
        "filling_staleness": {},
    }


def _has_ended(job: Any) -> bool:
    return JobState(job.state) in TERMINAL


def _group(group_id: str, body: Mapping[str, Any], eta_s: float) -> ScheduledGroup:
    return ScheduledGroup(
        id=group_id,
        lane=body["lane"],
        ordinal=body["ordinal"],
        eta_s=eta_s,
        staleness=body["staleness"],
        last_valid_step=body["last_valid_step"],
        position=body["position"],
        opened_at=_time(body["opened_at"]),
        node=body["node"],
        rollouts=[_rollout(one) for one in body["rollouts"]],
    )


def _rollout(body: Mapping[str, Any]) -> ScheduledRollout:
    return ScheduledRollout(
        id=body["id"],
        stage=body["stage"],
        wait_reason=body["wait_reason"],
        numbers=body["numbers"],
        since=_time(body["since"]),
        current_try=body["try"],
        hop=body["hop"],
        turn=body["turn"],
        tokens=body["tokens"],
        host=body["host"],
    )


def _unsaid(job: Any, rollout: Any) -> ScheduledRollout:
    """Of a rollout of which the leader says nothing: its group is gone, or was never taken up."""
    is_pending = rollout.disposition == "pending" and not _has_ended(job)
    is_running = job.state == JobState.RUNNING
    waits = WaitReason.NOT_REPORTED if is_running else WaitReason.JOB_NOT_RUNNING
    has_ended = rollout.end is not None
    return ScheduledRollout(
        id=rollout.id,
        stage=RolloutStage.ENDED.value if has_ended else RolloutStage.WAITING.value,
        wait_reason=waits.value if is_pending or not has_ended else None,
        since=rollout.closed_at,
        current_try=rollout._mapping["try"],
        hop=rollout.hop,
        turn=rollout.turns or 0,
        tokens=rollout.tokens or 0,
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


async def _job(gateway: Gateway, caller: ProjectCaller, job_id: str) -> Any:
    async with gateway.database.begin() as connection:
        row = await jobs.find(connection, caller.project_id, job_id)
    if row is None:
        raise not_found("job", job_id)
    return row
