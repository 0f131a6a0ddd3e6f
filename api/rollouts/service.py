"""Wire forms of groups, rollouts and trajectories."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import msgspec

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.problems import Problem, not_found
from api.rollouts.reasons import reason_of
from api.rollouts.spans import Facts, spans_of
from domain.errors import PayloadUnreadable
from domain.trajectory import Trajectory as StoredTrajectory
from infra.codec import from_msgpack
from stores import jobs, rollouts
from stores.rollouts import History
from venusrl.models.logs import Spans
from venusrl.models.rollouts import Group, Rollout, RolloutDetail, Trajectory, Try


def group_of(row: Any) -> Group:
    """Wire form of a group row."""
    return Group.model_validate(dict(row._mapping))


def rollout_of(row: Any) -> Rollout:
    """Wire form of a rollout row; its history is in the answer for one rollout."""
    columns = dict(row._mapping)
    return Rollout.model_validate(columns | {"current_try": columns["try"]})


async def detail(gateway: Gateway, caller: ProjectCaller, rollout_id: str) -> RolloutDetail:
    """The rollout with its tries, placements, group and step. Raises 404."""
    async with gateway.database.begin() as connection:
        row = await rollouts.find(connection, caller.project_id, rollout_id)
        if row is None:
            raise not_found("rollout", rollout_id)
        history = await rollouts.history(connection, row)
    columns = dict(row._mapping)
    return RolloutDetail.model_validate(
        columns
        | {
            "current_try": columns["try"],
            "tries": [_try_of(dict(one._mapping)) for one in history.tries],
            "hops": [_hop_of(dict(one._mapping)) for one in history.hops],
            "group": dict(history.group._mapping),
            "training": _training_of(history),
            "reason": reason_of(row, history),
        }
    )


def _try_of(one: Mapping[str, Any]) -> Try:
    return Try(
        number=one["try"],
        end=one["end"],
        cause=one["cause"],
        counts=one["counts"],
        hop=one["hop"],
        ended_at=one["ended_at"],
    )


def _hop_of(one: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**one, "try_number": one["try"]}


def _training_of(history: History) -> Mapping[str, Any] | None:
    if history.step is None:
        return None
    group = history.group
    payload = None
    if group.payload_uri is not None:
        payload = {"uri": group.payload_uri, "sha256": group.payload_sha}
    return {**history.step._mapping, "payload": payload}


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


async def spans(gateway: Gateway, caller: ProjectCaller, rollout_id: str) -> Spans:
    """Where the rollout's time went, as far as it is known. Raises 404."""
    async with gateway.database.begin() as connection:
        row = await rollouts.find(connection, caller.project_id, rollout_id)
        if row is None:
            raise not_found("rollout", rollout_id)
        history = await rollouts.history(connection, row)
        boxes = await rollouts.sandboxes(connection, rollout_id)
    stored = None
    if row.trajectory_uri is not None:
        # Spans are for a look: one that lacks its turns is worth more than none.
        with suppress(PayloadUnreadable, msgspec.MsgspecError):
            data = await gateway.blobs.read(row.trajectory_uri, row.trajectory_sha)
            stored = await asyncio.to_thread(from_msgpack, data, StoredTrajectory)
    return spans_of(Facts(row, history, boxes, stored))


async def trajectory(gateway: Gateway, caller: ProjectCaller, rollout_id: str) -> Trajectory:
    """The stored token record, checked against its sha. Raises 404 until the rollout has closed."""
    row = await need_rollout(gateway, caller, rollout_id)
    if row.trajectory_uri is None:
        state = "is still open" if row.closed_at is None else f"ended {row.end} without one"
        raise Problem(404, "no_trajectory", f"The rollout {state}.")
    try:
        data = await gateway.blobs.read(row.trajectory_uri, row.trajectory_sha)
        return await asyncio.to_thread(decoded, data)
    except (PayloadUnreadable, msgspec.MsgspecError) as error:
        raise Problem(
            500, "payload_unreadable", f"The stored trajectory is damaged: {error}"
        ) from (error)


def decoded(data: bytes) -> Trajectory:
    """Wire form of a stored trajectory. Raises MsgspecError."""
    return Trajectory.model_validate(asdict(from_msgpack(data, StoredTrajectory)))
