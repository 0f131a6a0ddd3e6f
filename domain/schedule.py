"""Closed words of a job's schedule: lanes of groups, stages of rollouts, and why something waits.

What is shown of a running job never says "unknown": whoever adds a way to wait adds its reason here.
"""

from enum import StrEnum
from typing import Final

Numbers = tuple[tuple[str, float], ...]
"""What a reason says beside its name; times are seconds of the clock that `step` is given."""


ROOM_NAMES: Final = {
    "memory": ("bytes_needed", "bytes_available"),
    "starts": ("starting_bytes_needed", "starting_bytes_available"),
    "pressure": ("pressure", "pressure_calm"),
    "sandboxes": ("sandboxes_needed", "sandboxes_available"),
    "cpu": ("sandboxes_needed", "sandboxes_available"),
}
"""By what a node lacks: what its two numbers are. Real nodes count places where the pool has cores."""


def room_numbers(resource: str, needed: float, available: float) -> Numbers:
    """What a node lacks, for people; nothing where a later version names something else."""
    names = ROOM_NAMES.get(resource)
    return () if names is None else ((names[0], needed), (names[1], available))


class Lane(StrEnum):
    """Where a live group stands; unfinished ones in the order in which they are served."""

    PROMOTED = "promoted"
    CRITICAL = "critical"
    NORMAL = "normal"
    EVALUATION = "evaluation"
    COMPLETE = "complete"
    ASSIGNED = "assigned"


class RolloutStage(StrEnum):
    """How far a rollout is: on no engine host, on one, or at its end."""

    WAITING = "waiting"
    PLACED = "placed"
    ENDED = "ended"


class WaitReason(StrEnum):
    """What stands between a rollout and its next progress."""

    RUNNING = "running"
    """A turn is generated."""
    IN_TOOL = "in_tool"
    """Its environment runs the tools of a turn."""
    ATTACHING = "attaching"
    """Its engine host fetches its journal from the node of its sandbox."""
    SAVING = "saving"
    """It has ended; its host stores the trajectory and closes it."""
    WAITS_FOR_SLOT = "waits_for_slot"
    """Its turn waits at the engine, whose slots are taken."""
    WAITS_FOR_KV = "waits_for_kv"
    """Its turn waits at the engine, which has slots and no room for its keys and values."""
    WAITS_FOR_STEP = "waits_for_step"
    """Its turn waits at the engine, which takes it at its next step."""
    WAITS_FOR_WEIGHTS = "waits_for_weights"
    """The engine takes new weights, or no engine serves the version that it needs."""
    WAITS_FOR_SANDBOX = "waits_for_sandbox"
    """No sandbox is free for its try."""
    SANDBOX_STARTS = "sandbox_starts"
    """A node agent was asked for its sandbox and has not answered."""
    WAITS_FOR_PLACE = "waits_for_place"
    """It has its sandbox; no engine host has taken it yet."""
    WAITS_FOR_ENGINE = "waits_for_engine"
    """No engine host of the attempt is live."""
    WAITS_FOR_NODE = "waits_for_node"
    """No node agent is live, or not the one that holds its group's sandboxes."""
    WAITS_FOR_HOST = "waits_for_host"
    """After a change of leader: the host that may hold it has neither joined nor been lost."""
    RETRY_BACKOFF = "retry_backoff"
    """Its last try failed; the next one starts later."""
    HELD_BY_STRATEGY = "held_by_strategy"
    """It has its sandbox and an engine could run it; the job's strategy gives it no place yet."""
    PAUSED_BY_PRESSURE = "paused_by_pressure"
    """Held back because the engines' keys and values are full."""
    CANCELLING = "cancelling"
    """Its close was sent and is not confirmed."""
    WAITS_FOR_SIBLINGS = "waits_for_siblings"
    """It has ended; others of its group have not."""
    WAITS_FOR_GRADE = "waits_for_grade"
    """Its group has ended and has no verdicts yet."""
    WAITS_FOR_BATCH = "waits_for_batch"
    """Its group is complete and has no position in a step."""
    WAITS_FOR_EVALUATION = "waits_for_evaluation"
    """Its group of an evaluation is complete; others of that evaluation are not."""
    IN_BATCH = "in_batch"
    """Its group has a position in the step being filled."""
    JOB_NOT_RUNNING = "job_not_running"
    """The job is queued, starts, pauses, is paused or ends."""
    NOT_REPORTED = "not_reported"
    """Nobody who leads has said anything of it yet."""


class NextGroup(StrEnum):
    """Whether one more training group may start, or the first thing that forbids it."""

    MAY_START = "may_start"
    """None of the others: it starts at once, unless another job's claim to the sandboxes goes first."""
    JOB_NOT_RUNNING = "job_not_running"
    LAST_STEP = "last_step"
    """The steps that are left have all their groups."""
    WAITS_FOR_ENGINE = "waits_for_engine"
    WAITS_FOR_WEIGHTS = "waits_for_weights"
    """No engine serves a policy that is new enough to start with."""
    WAITS_FOR_SIGNAL = "waits_for_signal"
    """No group of a whole batch had any variance; one probe at a time."""
    WAITS_FOR_SUCCESS = "waits_for_success"
    """A whole batch of tries failed in a row; one probe at a time."""
    STALENESS = "staleness"
    """More groups would become too old: m + v + 1 batches are alive."""
    ACTIVE_BATCH = "active_batch"
    """ceil(a x B) groups are unfinished."""
    HELD_BY_STRATEGY = "held_by_strategy"
    """The job's strategy starts none, within the bounds that all strategies have."""
    EVALUATION = "evaluation"
    """An evaluation waits for sandboxes first."""
    SANDBOXES = "sandboxes"
    """No sandboxes for a whole group."""
