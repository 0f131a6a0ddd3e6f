"""Groups, rollouts and trajectories of a job, for reading."""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import httpx

from venusrl._checkpoints import AsyncOperations
from venusrl._errors import ApiError, ConnectionFailed
from venusrl._lists import iterate, read
from venusrl._paths import one
from venusrl._transport import TRIED_AGAIN, Request, Transport
from venusrl.models.branches import Branch, BranchResult
from venusrl.models.checkpoints import Operation
from venusrl.models.logs import Component, LogLine, Spans
from venusrl.models.rollouts import Group, Rollout, RolloutDetail, Trajectory

BRANCH_WAIT_S: Final = 330.0
"""A chore plays for 200 s at most, beside starting, loading and grading."""

READ_TIMEOUT_S: Final = 120.0
"""Silence of an export before its connection counts as dead."""


class AsyncGroups:
    """`client.groups`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, /, job_id: str, **filters: Any) -> AsyncIterator[Group]:
        """Groups of a job; by filter.

        Filters: step, task_id, purpose, disposition, policy_version, reward_min, reward_max.
        """
        return iterate(self._transport, f"/v1/jobs/{one(job_id)}/groups", filters, Group)

    async def get(self, group_id: str) -> Group:
        """One group."""
        return await read(self._transport, Request("GET", f"/v1/groups/{one(group_id)}"), Group)


class AsyncRollouts:
    """`client.rollouts`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, /, job_id: str, **filters: Any) -> AsyncIterator[Rollout]:
        """Rollouts of a job.

        Filters: group_id, step, task_id, purpose, end, verdict, disposition (`dropped(stale)` or
        `dropped`), bucket (of the job's bill), retried (a try of it failed), policy_version,
        reward_min, reward_max.
        """
        return iterate(self._transport, f"/v1/jobs/{one(job_id)}/rollouts", filters, Rollout)

    async def get(self, rollout_id: str) -> RolloutDetail:
        """One rollout with its tries, placements, group, step and the reason of its fate."""
        return await read(
            self._transport, Request("GET", f"/v1/rollouts/{one(rollout_id)}"), RolloutDetail
        )

    async def trajectory(self, rollout_id: str) -> Trajectory:
        """Its tokens with mask, log-probabilities and versions, its turns and messages."""
        path = f"/v1/rollouts/{one(rollout_id)}/trajectory"
        return await read(self._transport, Request("GET", path), Trajectory)

    def logs(
        self, rollout_id: str, *, component: Component | None = None, after: str | None = None
    ) -> AsyncIterator[LogLine]:
        """Lines that its environment printed in each try, failed ones too, and its graders."""
        params = {"component": component, "after": after}
        path = f"/v1/rollouts/{one(rollout_id)}/logs"
        return iterate(self._transport, path, params, LogLine)

    async def spans(self, rollout_id: str) -> Spans:
        """Where its time went: by try, placement and turn, then grading and its batch."""
        path = f"/v1/rollouts/{one(rollout_id)}/spans"
        return await read(self._transport, Request("GET", path), Spans)

    async def branch(
        self,
        rollout_id: str,
        turns: Sequence[int] | None = None,
        *,
        n: int = 8,
        checkpoint: str | None = None,
        tool_output: str | None = None,
        temperature: float | None = None,
        timeout_s: float = BRANCH_WAIT_S,
    ) -> BranchResult:
        """Continue it from before these turns, `n` times each; without turns from before each.

        The recorded actions run again in fresh sandboxes. `tool_output` is what the model reads
        instead of the last tool's answer. Raises OperationFailed, code `replay_diverged` where the
        environment answers otherwise than it did.
        """
        body = {
            "turns": None if turns is None else list(turns),
            "n": n,
            "checkpoint": checkpoint,
            "tool_output": tool_output,
            "temperature": temperature,
        }
        path = f"/v1/rollouts/{one(rollout_id)}/branch"
        operation = await read(self._transport, Request("POST", path, {}, body), Operation)
        waited = await AsyncOperations(self._transport).wait(operation, timeout_s)
        return BranchResult.model_validate(waited)

    def branches(self, rollout_id: str) -> AsyncIterator[Branch]:
        """Its branches, with their results."""
        return iterate(self._transport, f"/v1/rollouts/{one(rollout_id)}/branches", {}, Branch)

    async def branch_trajectory(
        self, rollout_id: str, branch_id: str, turn: int, index: int
    ) -> Trajectory:
        """The tokens of one continuation, those of its prefix among them."""
        path = f"/v1/rollouts/{one(rollout_id)}/branches/{one(branch_id)}/trajectory"
        request = Request("GET", path, {"turn": turn, "index": index})
        return await read(self._transport, request, Trajectory)

    async def export(
        self,
        /,
        job_id: str,
        file: str | os.PathLike[str],
        format: Literal["jsonl", "parquet"] | str = "jsonl",
        **filters: Any,
    ) -> int:
        """Trajectories of a job into a file, by the filters of `list`; returns its size in bytes.

        The file appears under its name only when whole. A broken download begins anew.
        """
        target = Path(file)
        part = target.with_name(f"{target.name}.part")
        path = f"/v1/jobs/{one(job_id)}/rollouts/export"
        request = Request("GET", path, {**filters, "format": format})
        patience = self._transport.patience
        for attempt in range(patience.tries):
            try:
                await self._fetch(request, part)
                break
            except (httpx.TransportError, ApiError) as error:
                if isinstance(error, ApiError) and error.status not in TRIED_AGAIN:
                    raise
                if attempt + 1 == patience.tries:
                    raise ConnectionFailed(f"{path}: {error!r}") from error
                await self._transport.pause(attempt)
        size = part.stat().st_size
        part.replace(target)
        return size

    async def _fetch(self, request: Request, part: Path) -> None:
        async with self._transport.stream(request, READ_TIMEOUT_S) as response:
            with part.open("wb") as out:
                async for chunk in self._transport.chunks(response):
                    out.write(chunk)
