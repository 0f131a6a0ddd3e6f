"""What nodes last answered to forks that they had no room for: shown with a rollout that waits for one.

Nothing is decided by it; the core asks the node again whatever it said.
"""

from typing import Final

from domain.ids import HostId, RolloutId
from infra.pool_frames import RoomRefused
from scheduler.hosts import Connected, Hosts

REFUSED_MAX: Final = 4096
"""Of one node; far more than it holds sandboxes. Beyond it the oldest answers are forgotten."""

_NAMES: Final = {
    "memory": ("bytes_needed", "bytes_available"),
    "starts": ("starting_bytes_needed", "starting_bytes_available"),
    "pressure": ("pressure", "pressure_calm"),
    "sandboxes": ("sandboxes_needed", "sandboxes_available"),
}
"""By the resource of a rule: what its two numbers are."""


def note(peer: Connected, refused: RoomRefused) -> None:
    """A node has no room for these tries now."""
    for rollout, _ in refused.members:
        peer.refused.pop(rollout, None)
        peer.refused[rollout] = refused
    while len(peer.refused) > REFUSED_MAX:
        del peer.refused[next(iter(peer.refused))]


def numbers(hosts: Hosts, node: HostId | None, rollout: RolloutId) -> dict[str, float]:
    """The node's last refusal of this rollout's fork; empty where it gave none."""
    peer = None if node is None else hosts.connected.get(node)
    refused = None if peer is None else peer.refused.get(rollout)
    names = None if refused is None else _NAMES.get(refused.rule.partition(".")[0])
    if refused is None or names is None:
        return {}
    return {names[0]: refused.needed, names[1]: refused.available}
