"""Which nodes make the sandboxes of a group: by their rooms where they said them, else by counts.

By counts: the group's home, else the node that was asked for fewest. By rooms (`sandboxes.core`): beside
siblings, else where it costs least; on several nodes only when none takes all. Nodes that refused the
group lately are left out. Where none has room nothing is asked of anybody, and the job says what it
lacks; what would not fit into an empty pool is asked all the same, for the node to refuse by its own
account: it ends the try with its numbers.
"""

from typing import Final

from domain.ids import GroupId, HostId
from sandboxes.core.admission import Refused, Why
from scheduler.core.node_rooms import Spot
from scheduler.core.records import GroupRecord, HostRecord, JobRecord, Lack
from scheduler.core.state import Pass, State

REFUSED_S: Final = 5.0
"""A node that refused a group is not asked again before: what it lacked comes back with turns that end."""

LACK_S: Final = 0.5
"""A job that found no room asks again after it: with hundreds of such jobs each report would ask for
all of them."""


def is_by_room(state: State, job: JobRecord) -> bool:
    """Nodes have said what room they have, and the job that it needs some: bare journals need none."""
    return state.rooms.is_known and any(one.ceiling_bytes for one in job.plan.templates)


def choose(run: Pass, job: JobRecord, group: GroupRecord | None, size: int) -> tuple[Spot, ...]:
    """Nodes for so many members of a group, new where None; fewer, or none, where room lacks."""
    state = run.state
    if not is_by_room(state, job):
        job.lack = None
        return (Spot(_by_count(state, group).host_id, size),)
    if job.lack is not None and run.now - job.lack.at < LACK_S and size >= job.lack.members:
        return ()
    refusing = () if group is None else _refusing(group, run.now)
    near = () if group is None else _near(group)
    name = GroupId("") if group is None else group.group_id
    answer = state.rooms.place(state.rooms.ask_of(job.plan, name, size, near, refusing))
    if not isinstance(answer, Refused):
        job.lack = None
        return answer
    if answer.why is Why.NEVER_FITS:
        return (Spot(_by_count(state, group).host_id, size),)
    if refusing and job.lack is not None:
        # What a node answered says more than what the leader thinks of it.
        job.lack = Lack(job.lack.resource, job.lack.needed, job.lack.available, run.now, size)
    else:
        job.lack = Lack(answer.resource, answer.needed, answer.available, run.now, size)
    return ()


def _by_count(state: State, group: GroupRecord | None) -> HostRecord:
    home = None if group is None or group.node is None else state.hosts.get(group.node)
    if home is not None and home.is_live:
        return home
    return min(state.nodes(), key=lambda node: (node.load, node.host_id))


def _near(group: GroupRecord) -> tuple[HostId, ...]:
    """Nodes of its siblings, those with most of them first."""
    return tuple(sorted(group.held_on, key=lambda node: (-group.held_on[node], node)))


def _refusing(group: GroupRecord, now: float) -> tuple[HostId, ...]:
    return tuple(node for node, at in group.refused_at.items() if now - at < REFUSED_S)
