"""Groups, rollouts and trajectories of a job, for reading."""

from collections.abc import AsyncIterator
from typing import Any

from venusrl._lists import iterate, read
from venusrl._transport import Request, Transport
from venusrl.models.rollouts import Group, Rollout, Trajectory


class AsyncGroups:
    """`client.groups`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, /, job_id: str, **filters: Any) -> AsyncIterator[Group]:
        """Groups of a job; filters: step, task_id, purpose, disposition."""
        return iterate(self._transport, f"/v1/jobs/{job_id}/groups", filters, Group)

    async def get(self, group_id: str) -> Group:
        """One group."""
        return await read(self._transport, Request("GET", f"/v1/groups/{group_id}"), Group)


class AsyncRollouts:
    """`client.rollouts`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, /, job_id: str, **filters: Any) -> AsyncIterator[Rollout]:
        """Rollouts of a job.

        Filters: group_id, step, task_id, purpose, end, verdict, disposition, reward_min, reward_max.
        """
        return iterate(self._transport, f"/v1/jobs/{job_id}/rollouts", filters, Rollout)

    async def get(self, rollout_id: str) -> Rollout:
        """One rollout with its former tries."""
        return await read(self._transport, Request("GET", f"/v1/rollouts/{rollout_id}"), Rollout)

    async def trajectory(self, rollout_id: str) -> Trajectory:
        """Its tokens with mask, log-probabilities and versions, its turns and messages."""
        path = f"/v1/rollouts/{rollout_id}/trajectory"
        return await read(self._transport, Request("GET", path), Trajectory)
