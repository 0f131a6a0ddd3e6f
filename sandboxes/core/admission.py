"""Whether a node takes a group now: an answer is admitted, or refused with its numbers.

Admit iff private + reserve + shared once + overhead + new <= packing x capacity, the gate is open and,
unless switched off, the same holds of CPU. Declared ceilings are hard limits of a sandbox, never what
is added up here. Agents see a capacity less the grading reserve; graders see all of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from domain.sandbox import SandboxPurpose
from sandboxes.core.cpu import GroupCpu, pooled_cores
from sandboxes.core.gate import RESUME_PRESSURE, PressureGate
from sandboxes.core.reserve import GroupDemand, Z, pooled_bytes

PACKING: Final = 0.90
"""Of the capacity: the rest takes what reserves did not foresee."""


RAMP_SHARE: Final = 0.10
"""Of a node's memory may be meant for groups in their first turn, which are not measured yet: as much as
packing leaves free. Groups that start together peak together, and the pooled reserve would take that
for chance."""


class Resource(StrEnum):
    """What a node can lack."""

    MEMORY = "memory"
    CPU = "cpu"
    PRESSURE = "pressure"
    STARTS = "starts"


class Why(StrEnum):
    """Why a group is not admitted."""

    NO_ROOM = "no_room"
    GRADING_RESERVE = "grading_reserve"
    """It would fit if nothing were kept for graders."""
    STARTING = "starting"
    """Too many others are in their first turn."""
    UNDER_PRESSURE = "under_pressure"
    NO_NODE = "no_node"
    """The pool is empty."""
    NEVER_FITS = "never_fits"
    """An empty node of this size would not take it whole, by what is expected of it now."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator sets of a node."""

    packing: float = PACKING
    z: float = Z
    is_cpu_admitted: bool = True
    ramp_share: float = RAMP_SHARE
    grading_reserve_bytes: int = 0
    """One sandbox of the largest admitted grader, overhead included."""

    def __post_init__(self) -> None:
        assert 0 < self.packing <= 1


@dataclass(frozen=True, slots=True)
class Ask:
    """A group that wants to start here."""

    demand: GroupDemand
    cpu: GroupCpu
    overhead_bytes: int
    """Of one sandbox."""
    template_bytes: int
    """Working set of the snapshot; 0 where the node holds it already."""
    purpose: SandboxPurpose = SandboxPurpose.AGENT


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """A node as it stands."""

    capacity_bytes: int
    cores: float
    committed_bytes: int
    """`NodePages.committed_bytes`."""
    groups: tuple[GroupDemand, ...]
    cpu: tuple[GroupCpu, ...]
    gate: PressureGate


@dataclass(frozen=True, slots=True)
class Admitted:
    """The group may start."""

    bytes_left: float
    """Below the packing limit, with the group and its reserve counted."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It may not. Bytes (memory, starts), cores or a share of time, by the resource."""

    why: Why
    resource: Resource
    needed: float
    available: float

    @property
    def missing(self) -> float:
        """How much more the node would have to have."""
        return max(0.0, self.needed - self.available)


def admit(load: NodeLoad, ask: Ask, rules: Rules) -> Admitted | Refused:
    """The answer of a node to a group; nothing is changed."""
    never = _never(load, ask, rules)
    if never is not None:
        return never
    limit = rules.packing * load.capacity_bytes
    kept = 0 if ask.purpose is SandboxPurpose.GRADER else rules.grading_reserve_bytes
    if not load.gate.is_open:
        return Refused(Why.UNDER_PRESSURE, Resource.PRESSURE, load.gate.pressure, RESUME_PRESSURE)
    others = sum(_expected(one) for one in load.groups if one.is_starting)
    ramp = rules.ramp_share * load.capacity_bytes
    if others and others + _expected(ask.demand) > ramp:
        return Refused(Why.STARTING, Resource.STARTS, others + _expected(ask.demand), ramp)
    needed = needed_bytes(load, ask, rules)
    if needed > limit - kept:
        why = Why.NO_ROOM if needed > limit else Why.GRADING_RESERVE
        return Refused(why, Resource.MEMORY, needed, limit - kept)
    used, cores = pooled_cores((*load.cpu, ask.cpu)), load.cores * rules.packing
    if rules.is_cpu_admitted and used > cores:
        return Refused(Why.NO_ROOM, Resource.CPU, used, cores)
    return Admitted(limit - kept - needed)


def _never(load: NodeLoad, ask: Ask, rules: Rules) -> Refused | None:
    """Whether an empty node like this would refuse, too."""
    kept = 0 if ask.purpose is SandboxPurpose.GRADER else rules.grading_reserve_bytes
    limit = rules.packing * load.capacity_bytes - kept
    alone = ask.template_bytes + _new_bytes(ask) + pooled_bytes([ask.demand], rules.z)
    if alone > limit:
        return Refused(Why.NEVER_FITS, Resource.MEMORY, alone, limit)
    cores = load.cores * rules.packing
    if rules.is_cpu_admitted and pooled_cores([ask.cpu]) > cores:
        return Refused(Why.NEVER_FITS, Resource.CPU, pooled_cores([ask.cpu]), cores)
    return None


def needed_bytes(load: NodeLoad, ask: Ask, rules: Rules) -> float:
    """Everything on the node with the group started: what is held, reserved, and new."""
    reserve = pooled_bytes((*load.groups, ask.demand), rules.z)
    return load.committed_bytes + reserve + ask.template_bytes + _new_bytes(ask)


def room_bytes(load: NodeLoad, rules: Rules) -> float:
    """What a node reports to the leader: bytes below the packing limit that agents may have."""
    held = load.committed_bytes + pooled_bytes(load.groups, rules.z)
    return rules.packing * load.capacity_bytes - rules.grading_reserve_bytes - held


def room_cores(cores: float, groups: Iterable[GroupCpu], rules: Rules) -> float:
    """Cores below the packing limit; what a node reports to the leader."""
    return cores * rules.packing - pooled_cores(groups)


def _expected(demand: GroupDemand) -> float:
    return demand.members * demand.growth.expected_bytes


def _new_bytes(ask: Ask) -> float:
    """Overhead; the private bytes to come are in the reserve of the group's demand."""
    return float(ask.demand.members * ask.overhead_bytes)
