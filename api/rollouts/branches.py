"""Branches: what is asked is made whole and checked here, a chore plays it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.operations.service import operation_of
from api.problems import Finding, Problem, conflict, invalid, not_found
from api.rollouts import service
from domain.errors import PayloadUnreadable
from infra.names import BRANCH_ROLLOUT
from stores import branches, checkpoints, rollouts
from stores.unit_of_work import AsyncConnection
from venusrl.models.branches import Branch, BranchRequest
from venusrl.models.rollouts import Trajectory

TURNS_MAX: Final = 64
"""Borders of one branch: a curve of a longer rollout is asked for in parts."""

CONTINUATIONS_MAX: Final = 256
"""Of all borders together; a chore plays them within minutes."""


async def start(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[str, BranchRequest],
) -> dict[str, Any]:
    """Insert the operation. Raises 404, 409 or 422."""
    rollout_id, body = asked
    row = await rollouts.find(connection, caller.project_id, rollout_id)
    if row is None:
        raise not_found("rollout", rollout_id)
    if row.closed_at is None:
        raise conflict("The rollout is still open.", "rollout_open")
    if row.trajectory_uri is None:
        raise conflict(f"The rollout ended {row.end} without a trajectory.", "no_trajectory")
    turns = _turns(row.turns, body)
    request = {
        "rollout_id": rollout_id,
        "checkpoint_id": await _checkpoint(connection, caller, row.job_id, body),
        "turns": turns,
        "n": body.n,
        "tool_output": body.tool_output,
        "temperature": body.temperature,
    }
    started = await checkpoints.start_operation(
        connection, caller.project_id, gateway.ids.new("op"), BRANCH_ROLLOUT, request
    )
    return operation_of(started).model_dump(mode="json")


def _turns(count: int, body: BranchRequest) -> list[int]:
    """Turns of the borders, each once, in order."""
    wanted = range(min(count, TURNS_MAX)) if body.turns is None else sorted(set(body.turns))
    turns = list(wanted)
    findings = [
        Finding("/turns", "no_such_turn", f"The rollout has {count} turns, {turn} is none of them.")
        for turn in turns
        if turn >= count
    ]
    if not turns:
        findings = [Finding("/turns", "no_such_turn", "The rollout sampled no turn.")]
    if body.tool_output is not None and 0 in turns:
        message = "Before turn 0 no tool has answered."
        findings.append(Finding("/tool_output", "no_tool_output", message, "Branch at turn 1."))
    if len(turns) * body.n > CONTINUATIONS_MAX:
        message = f"{len(turns)} borders of {body.n} are more than {CONTINUATIONS_MAX}."
        findings.append(Finding("/n", "too_many", message, "Ask for fewer, or in parts."))
    if findings:
        raise invalid(findings)
    return turns


async def _checkpoint(
    connection: AsyncConnection, caller: ProjectCaller, job_id: str, body: BranchRequest
) -> str:
    """Who goes on: the one that is named, else the newest of the job."""
    if body.checkpoint is None:
        newest = await checkpoints.newest(connection, caller.project_id, job_id)
        if newest is None:
            detail = "The job has no checkpoint yet: name one of the project."
            raise conflict(detail, "no_checkpoint")
        return str(newest.id)
    found = await checkpoints.find(connection, caller.project_id, body.checkpoint)
    if found is None:
        raise not_found("checkpoint", body.checkpoint)
    if found.state != "ready":
        raise conflict(f"The checkpoint is {found.state}.", "checkpoint_not_ready")
    return body.checkpoint


def branch_of(row: Any) -> Branch:
    """Wire form of a branch."""
    return Branch.model_validate(
        {
            **{name: row.request[name] for name in ("rollout_id", "checkpoint_id", "turns", "n")},
            **{
                name: getattr(row, name)
                for name in ("id", "state", "result", "error", "created_at")
            },
        }
    )


async def trajectory(
    gateway: Gateway, caller: ProjectCaller, named: tuple[str, str], turn: int, index: int
) -> Trajectory:
    """The token record of one continuation; `named` is rollout and branch. Raises 404."""
    rollout_id, branch_id = named
    await service.need_rollout(gateway, caller, rollout_id)
    async with gateway.database.begin() as connection:
        row = await branches.find(connection, caller.project_id, rollout_id, branch_id)
    if row is None:
        raise not_found("branch", branch_id)
    stored = _stored(row.result or {}, turn, index)
    if stored is None:
        raise not_found("continuation", f"{turn}/{index}")
    try:
        data = await gateway.blobs.read(stored["uri"], stored["sha"])
        return await asyncio.to_thread(service.decoded, data)
    except (PayloadUnreadable, msgspec.MsgspecError) as error:
        detail = f"The stored trajectory is damaged: {error}"
        raise Problem(500, "payload_unreadable", detail) from error


def _stored(result: Mapping[str, Any], turn: int, index: int) -> Mapping[str, Any] | None:
    for border in result.get("borders", ()):
        for one in border["continuations"]:
            if (border["turn"], one["index"]) == (turn, index):
                found: Mapping[str, Any] = one["trajectory"]
                return found
    return None
