"""Wire forms of groups, rollouts and trajectories."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.problems import Problem, not_found
from domain.errors import PayloadUnreadable
from domain.trajectory import Trajectory as StoredTrajectory
from infra.codec import from_msgpack
from stores import jobs, rollouts
from venusrl.models.rollouts import Group, Rollout, Trajectory, Try


def group_of(row: Any) -> Group:
    """Wire form of a group row."""
    return Group.model_validate(dict(row._mapping))


def rollout_of(row: Any, tries: Sequence[Any] = ()) -> Rollout:
    """Wire form of a rollout row and its ended tries."""
    columns = dict(row._mapping)
    ended = [dict(one._mapping) for one in tries]
    return Rollout.model_validate(
        columns
        | {
            "current_try": columns["try"],
            "tries": [
                Try(number=one["try"], end=one["end"], cause=one["cause"], counts=one["counts"])
                for one in ended
            ],
        }
    )


async def need_job(gateway: Gateway, caller: ProjectCaller, job_id: str) -> None:
    """Raise 404 unless the job is the caller's: an unknown job has no empty list."""
    async with gateway.database.begin() as connection:
        if await jobs.find(connection, caller.project_id, job_id) is None:
            raise not_found("job", job_id)


async def need_rollout(gateway: Gateway, caller: ProjectCaller, rollout_id: str) -> Any:
    """The rollout's row. Raises 404."""
    async with gateway.database.begin() as connection:
        row = await rollouts.find(connection, caller.project_id, rollout_id)
    if row is None:
        raise not_found("rollout", rollout_id)
    return row


async def trajectory(gateway: Gateway, caller: ProjectCaller, rollout_id: str) -> Trajectory:
    """The stored token record, checked against its sha. Raises 404 until the rollout has closed."""
    row = await need_rollout(gateway, caller, rollout_id)
    if row.trajectory_uri is None:
        state = "is still open" if row.closed_at is None else f"ended {row.end} without one"
        raise Problem(404, "no_trajectory", f"The rollout {state}.")
    try:
        data = await gateway.blobs.read(row.trajectory_uri, row.trajectory_sha)
        return await asyncio.to_thread(_decode, data)
    except (PayloadUnreadable, msgspec.MsgspecError) as error:
        raise Problem(
            500, "payload_unreadable", f"The stored trajectory is damaged: {error}"
        ) from (error)


def _decode(data: bytes) -> Trajectory:
    return Trajectory.model_validate(asdict(from_msgpack(data, StoredTrajectory)))
