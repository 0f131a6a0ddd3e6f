"""A job with groups, rollouts and trajectories, as other processes would have written them."""

from typing import Any

from domain.ids import GroupId, RolloutId, TaskId
from domain.trajectory import Segment, Trajectory, TurnSpan
from infra.codec import to_msgpack
from stores import tables as t
from tests.integration.api.world import Tenant, World


class Filled:
    """A job with one trained group of three rollouts and one evaluation group of one."""

    def __init__(self, tenant: Tenant) -> None:
        """Write the rows."""
        self.world, self.job = tenant.world, tenant.ended()
        self.shared = {
            "job_id": self.job["id"],
            "attempt_id": self.job["attempt_id"],
            "organization_id": tenant.organization_id,
        }
        self.train = self.group(0, "train", 3, "trained(1)")
        self.test = self.group(900_000_000, "evaluation", 1, "evaluated(0)")
        scored = {"end": "done", "verdict": "scored"}
        self.rollouts = [
            self.rollout(self.train, 0, reward=1.0, disposition="trained(1)", **scored),
            self.rollout(
                self.train, 1, reward=0.25, disposition="trained(1)", oldest_version=7,
                newest_version=8, **scored,
            ),
            self.rollout(
                self.train, 2, end="timeout", verdict="unscorable",
                unscorable_reason="bad_type", disposition="dropped(unscorable)",
            ),
            self.rollout(self.test, 0, reward=0.5, disposition="evaluated(0)", **scored),
        ]  # fmt: skip
        self.world.add(
            t.batch_member, job_id=self.job["id"], attempt_id=self.job["attempt_id"], step=1,
            position=0, group_id=self.train, staleness=1,
        )  # fmt: skip

    def group(self, ordinal: int, purpose: str, size: int, disposition: str) -> str:
        """One closed group."""
        id = f"grp_{self.job['attempt_id'].removeprefix('att_')}_{ordinal:09d}"
        self.world.add(
            t.rollout_group, id=id, ordinal=ordinal, purpose=purpose, task_id=f"task-{ordinal}",
            environment_version_id="ev", policy_version=0, size=size, open=0,
            disposition=disposition, **self.shared,
        )  # fmt: skip
        return id

    def rollout(self, group: str, index: int, **values: Any) -> str:
        """One closed rollout."""
        id = f"ro_{group.removeprefix('grp_')}_{index:03d}"
        ordinal = int(group.rpartition("_")[2])
        purpose = "evaluation" if ordinal else "train"
        self.world.add(
            t.rollout, id=id, group_id=group, index=index, purpose=purpose,
            task_id=f"task-{ordinal}", **self.shared, **values,
        )  # fmt: skip
        return id


def stored(
    world: World, rollout: str, *, try_: int = 1, generate_s: float = 0.1, tool_s: float = 0.0
) -> str:
    """Give the rollout a trajectory; where it lies."""
    trajectory = Trajectory(
        rollout_id=RolloutId(rollout),
        group_id=GroupId("grp_x"),
        task_id=TaskId("t"),
        try_=try_,
        hop=2,
        end="done",
        segments=(Segment((1, 2, 3), (0, 1, 1), (0.0, -0.5, -0.25), (-1, 0, 1)),),
        turns=(TurnSpan(0, 0, 3, 3, 0, "stop", generate_s, tool_s),),
        messages=({"role": "user", "content": "1+1"},),
        metrics={"calls": 1.0},
    )
    uri, sha = world.store(f"jobs/x/{rollout}.msgpack", to_msgpack(trajectory))
    world.change(t.rollout, rollout, trajectory_uri=uri, trajectory_sha=sha)
    return uri
