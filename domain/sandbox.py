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
class SandboxTemplate:
    """What a job's sandboxes are clones of, before anybody measured one.

    `name` is the one by which nodes know it (`template_name`).
    """

    name: str
    ceiling_bytes: int
    """Hard limit of one sandbox; 0 where an environment has none and only takes a place."""


@dataclass(frozen=True, slots=True)
class TemplateRoom:
    """What a node knows of one template. Bytes."""

    name: str
    each_bytes: int
    """Room for a sandbox alone on a node, by what ended ones have taught."""
    shared_bytes: int
    """Working set of its snapshot."""
    is_present: bool
    """The snapshot's pages are counted on the node already."""
    rollouts: int
    """That ended in it there: its evidence."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node's account as its own admission sees it. Bytes; rooms are for agents, reserves taken off."""

    capacity_bytes: int
    private_bytes: int
    reserve_bytes: int
    """What sandboxes that run will still grow by, pooled."""
    shared_bytes: int
    """Snapshots, each once."""
    overhead_bytes: int
    """Of all monitors."""
    other_bytes: int
    """Others' use of the machine."""
    room_bytes: int
    largest_bytes: int
    """Room of the same node if it held no sandbox."""
    places: int
    """Sandboxes that it would still take by their number alone."""
    places_max: int
    each_overhead_bytes: int
    """Of one sandbox of its runtime."""
    pressure: float
    """Share of time that something waited for memory; 0 where nobody can read it."""
    is_open: bool
    """Its gate admits; it closes under pressure and opens once that is over."""
    templates: tuple[TemplateRoom, ...] = ()


def template_name(environment_version: str, purpose: SandboxPurpose) -> str:
    """Name of the template of an environment's sandboxes; it belongs to one tenant, as the version does."""
    return f"{environment_version}/{purpose}"


@dataclass(frozen=True, slots=True)
class ForkMember:
    """One member of a fork: a rollout's try with the seed its sandbox gets."""

    rollout_id: RolloutId
    try_: int
    hop: int
    seed: int
