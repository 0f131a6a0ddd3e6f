"""Groups, rollouts and trajectories of a job, for reading."""

from collections.abc import Iterator
from typing import Any

from venusrl._lists import iterate, read
from venusrl._transport import Request, Transport
from venusrl.models.rollouts import Group, Rollout, RolloutDetail, Trajectory


class Groups:
    """`client.groups`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, job_id: str, **filters: Any) -> Iterator[Group]:
        """Groups of a job; by filter.

        Filters: step, task_id, purpose, disposition, policy_version, reward_min, reward_max.
        """
        return iterate(self._transport, f"/v1/jobs/{job_id}/groups", filters, Group)

    def get(self, group_id: str) -> Group:
        """One group."""
        return read(self._transport, Request("GET", f"/v1/groups/{group_id}"), Group)


class Rollouts:
    """`client.rollouts`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, job_id: str, **filters: Any) -> Iterator[Rollout]:
        """Rollouts of a job.

        Filters: group_id, step, task_id, purpose, end, verdict, disposition (`dropped(stale)` or
        `dropped`), bucket (of the job's bill), policy_version, reward_min, reward_max.
        """
        return iterate(self._transport, f"/v1/jobs/{job_id}/rollouts", filters, Rollout)

    def get(self, rollout_id: str) -> RolloutDetail:
        """One rollout with its tries, placements, group, step and the reason of its fate."""
        return read(self._transport, Request("GET", f"/v1/rollouts/{rollout_id}"), RolloutDetail)

    def trajectory(self, rollout_id: str) -> Trajectory:
        """Its tokens with mask, log-probabilities and versions, its turns and messages."""
        path = f"/v1/rollouts/{rollout_id}/trajectory"
        return read(self._transport, Request("GET", path), Trajectory)
