"""What the leader's pool is told and asked, and what it answers."""

from dataclasses import dataclass

from domain.ids import GroupId, OrganizationId
from domain.sandbox import SandboxPurpose
from sandboxes.core.names import NodeId, PlacementId, TemplateId


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node says of itself. Rooms are for agents: packing, reserves and graders taken off."""

    node_id: NodeId
    room_bytes: float
    room_cores: float
    """Where a node admits no CPU, what it counts instead: places for sandboxes."""
    largest_bytes: float
    """What it would have if it were empty."""
    largest_cores: float
    overhead_bytes: int
    """Of one sandbox of its runtime."""
    pressure: float
    is_open: bool
    templates: frozenset[TemplateId] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupAsk:
    """A group that needs sandboxes."""

    group_id: GroupId
    tenant: OrganizationId
    template: TemplateId
    members: int
    expected_bytes: float
    """Private, of one member, its share of the pooled reserve included."""
    expected_cores: float
    template_bytes: float
    """Working set of the snapshot on a node that has it not."""
    purpose: SandboxPurpose = SandboxPurpose.AGENT
    near: tuple[NodeId, ...] = ()
    """Where siblings are: taken first, whatever it costs, where they take all of it."""
    without: frozenset[NodeId] = frozenset()
    """Nodes that refused the group lately."""


@dataclass(frozen=True, slots=True)
class Placement:
    """So many members of a group on a node."""

    placement_id: PlacementId
    group_id: GroupId
    node_id: NodeId
    members: int
    cost_bytes: float


Bucket = tuple[int, int]
"""Overhead in bytes and step of pressure: nodes whose sandboxes cost the same and that are as pressed."""
