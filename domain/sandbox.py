"""Identity of sandboxes: the member key makes fork idempotent (`protocol.md` section 6)."""

from dataclasses import dataclass
from enum import StrEnum

from domain.ids import AttemptId, GroupId, RolloutId


class SandboxPurpose(StrEnum):
    """Who uses the sandbox."""

    AGENT = "agent"
    GRADER = "grader"
    BRANCH = "branch"


@dataclass(frozen=True, slots=True, order=True)
class MemberKey:
    """One fork request; the same key never gives a second sandbox."""

    attempt_id: AttemptId
    group_id: GroupId
    index: int
    try_: int
    purpose: SandboxPurpose
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Hard ceilings of one sandbox. Bytes and seconds; `pids_max` counts threads too."""

    memory_bytes: int = 512 * 1024 * 1024
    disk_bytes: int = 64 * 1024 * 1024
    pids_max: int = 64
    output_bytes_max: int = 1024 * 1024
    exec_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ForkMember:
    """One member of a fork: a rollout's try with the seed its sandbox gets."""

    rollout_id: RolloutId
    try_: int
    hop: int
    seed: int
