"""Typed ids. A `RolloutId` never meets a `GroupId`; ids of groups and rollouts derive from the attempt.

Derived ids make creation by the leader idempotent: the same ordinal always names the same group.
"""

from typing import Final, NewType

OrganizationId = NewType("OrganizationId", str)
ProjectId = NewType("ProjectId", str)
KeyId = NewType("KeyId", str)
EnvironmentId = NewType("EnvironmentId", str)
EnvironmentVersionId = NewType("EnvironmentVersionId", str)
ModelId = NewType("ModelId", str)
JobId = NewType("JobId", str)
AttemptId = NewType("AttemptId", str)
GroupId = NewType("GroupId", str)
RolloutId = NewType("RolloutId", str)
CheckpointId = NewType("CheckpointId", str)
HostId = NewType("HostId", str)
TaskId = NewType("TaskId", str)

EVALUATION_ORDINAL_BASE: Final = 900_000_000
"""Ordinals at or above it belong to evaluation groups, so that they never shift the training data order."""

EVALUATION_ORDINALS_PER_STEP: Final = 10_000
"""Upper bound of evaluation tasks in one evaluation; keeps ordinals of two evaluations apart."""


REPEAT_SPAN: Final = 50_000_000
"""Training ordinals below it are tasks in their order; `n * REPEAT_SPAN + ordinal` is the n-th repeat of
the task of `ordinal`. Above every ordinal that 9,999 steps of 4,096 groups can issue."""

REPEATS_MAX: Final = EVALUATION_ORDINAL_BASE // REPEAT_SPAN - 1
"""How often one task may be queued again; the ordinals of evaluations begin above the last repeat."""


def task_ordinal(ordinal: int) -> int:
    """The training ordinal whose task this one names: its own, or that of what it repeats."""
    return ordinal % REPEAT_SPAN


def repeat_of(ordinal: int) -> int | None:
    """The ordinal that queues the task of this one again; None when it was repeated too often."""
    repeat = ordinal + REPEAT_SPAN
    return repeat if repeat < EVALUATION_ORDINAL_BASE else None


def group_id(attempt: AttemptId, ordinal: int) -> GroupId:
    """Id of the group with this ordinal in this attempt."""
    return GroupId(f"grp_{attempt.removeprefix('att_')}_{ordinal:09d}")


def rollout_id(group: GroupId, index: int) -> RolloutId:
    """Id of member `index` (0-based) of a group."""
    return RolloutId(f"ro_{group.removeprefix('grp_')}_{index:03d}")


def group_of(rollout: RolloutId) -> GroupId:
    """The group that a rollout belongs to, read off its id."""
    return GroupId("grp_" + rollout.removeprefix("ro_").rpartition("_")[0])


def attempt_of(group: GroupId) -> AttemptId:
    """The attempt that a group belongs to, read off its id."""
    return AttemptId("att_" + group.removeprefix("grp_").rpartition("_")[0])


def ordinal_of(group: GroupId) -> int:
    """The ordinal of a group inside its attempt."""
    return int(group.rpartition("_")[2])


def index_of(rollout: RolloutId) -> int:
    """The member index of a rollout inside its group."""
    return int(rollout.rpartition("_")[2])


def host_id(attempt: AttemptId, role: str) -> HostId:
    """Id of an attempt-bound host; `role` is `trainer` or `engine<N>`."""
    return HostId(f"host_{attempt.removeprefix('att_')}_{role}")


def attempt_of_host(host: HostId) -> AttemptId:
    """The attempt in the id of an attempt-bound host; of a node's id it names no real attempt."""
    return AttemptId("att_" + host.removeprefix("host_").rpartition("_")[0])


_NODE: Final = "host_node"


def node_host_id(index: int) -> HostId:
    """Id of the sandbox node agent with this index; nodes serve all attempts."""
    return HostId(f"{_NODE}{index}")


def node_index(host: HostId) -> int:
    """The index of a sandbox node agent."""
    return int(host.removeprefix(_NODE))
