"""What nodes answered to forks that they had no room for: a fact for the core, and what is shown of it.

Where nodes say their rooms the core asks another node; else the same again, whatever it said.
"""

from typing import Final

from domain.events import ForksDeclined
from domain.ids import HostId, RolloutId
from domain.schedule import room_numbers
from infra.pool_frames import RoomRefused
from scheduler.hosts import Connected, Hosts

REFUSED_MAX: Final = 4096
"""Of one node; far more than it holds sandboxes. Beyond it the oldest answers are forgotten."""


def note(peer: Connected, refused: RoomRefused) -> None:
    """A node has no room for these tries now."""
    for rollout, _ in refused.members:
        peer.refused.pop(rollout, None)
        peer.refused[rollout] = refused
    while len(peer.refused) > REFUSED_MAX:
        del peer.refused[next(iter(peer.refused))]


def as_event(peer: Connected, refused: RoomRefused) -> ForksDeclined:
    """The same as the core knows it."""
    return ForksDeclined(
        node=peer.host_id,
        node_epoch=peer.epoch,
        group_id=refused.group_id,
        members=refused.members,
        rule=refused.rule,
        needed=refused.needed,
        available=refused.available,
    )


def numbers(hosts: Hosts, node: HostId | None, rollout: RolloutId) -> dict[str, float]:
    """The node's last refusal of this rollout's fork; empty where it gave none."""
    peer = None if node is None else hosts.connected.get(node)
    refused = None if peer is None else peer.refused.get(rollout)
    if refused is None:
        return {}
    resource = refused.rule.partition(".")[0]
    return dict(room_numbers(resource, refused.needed, refused.available))
