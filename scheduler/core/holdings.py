"""The only functions that change what a rollout holds: a sandbox, a place on an engine host.

Counters of jobs and hosts change here and nowhere else, so that in use + free = total is one check.
"""

from domain.ids import HostId
from domain.states import HostKind
from sandboxes.core.names import PlacementId
from scheduler.core.records import GroupRecord, JobRecord, RolloutRecord, SandboxState
from scheduler.core.state import State


def sandboxes_free(state: State) -> int:
    """Sandboxes that may still go to agents; the grading reserve is never among them."""
    return state.pool.sandboxes - state.pool.grading_reserve - state.sandboxes


def take_sandbox(
    state: State,
    job: JobRecord,
    member: tuple[GroupRecord, RolloutRecord],
    known: SandboxState,
    node: HostId | None,
    *,
    part: PlacementId | None = None,
) -> None:
    """The current try holds a sandbox from now on, known as asked, ready or unknown, on this node.

    `part` holds its room there; one that is asked for again has lost what held it.
    """
    group, rollout = member
    assert known is not SandboxState.WANTED, rollout.rollout_id
    if known is SandboxState.ASKED:
        _leave_part(state, rollout)
        rollout.part = part
    if rollout.sandbox is SandboxState.WANTED:
        job.sandboxes += 1
        state.sandboxes += 1
    _move(state, group, rollout, node)
    _know_sandbox(state, job, rollout, known)
    job.wanting.pop(rollout.rollout_id, None)


def give_sandbox(state: State, job: JobRecord, group: GroupRecord, rollout: RolloutRecord) -> None:
    """The current try holds no sandbox any more."""
    if rollout.sandbox is not SandboxState.WANTED:
        job.sandboxes -= 1
        state.sandboxes -= 1
    _move(state, group, rollout, None)
    _leave_part(state, rollout)
    _know_sandbox(state, job, rollout, SandboxState.WANTED)


def hold_sandbox(state: State, job: JobRecord, rollout: RolloutRecord) -> None:
    """A node holds the sandbox that was asked for."""
    _know_sandbox(state, job, rollout, SandboxState.READY)


def _leave_part(state: State, rollout: RolloutRecord) -> None:
    """Its room on its node is not held for it any more."""
    if rollout.part is not None:
        state.rooms.give_back(rollout.part, rollout.sandbox is SandboxState.READY)
        rollout.part = None


def _know_sandbox(
    state: State, job: JobRecord, rollout: RolloutRecord, known: SandboxState
) -> None:
    if rollout.sandbox is SandboxState.ASKED:
        job.asked.pop(rollout.rollout_id, None)
        if rollout.part is not None and known is SandboxState.READY:
            state.rooms.answered(rollout.part)
    rollout.sandbox = known
    if known is SandboxState.ASKED:
        job.asked[rollout.rollout_id] = None


def move_to_node(state: State, group: GroupRecord, node: HostId | None) -> None:
    """The group's home is this node from now on; what was at its former one, or nowhere, is there."""
    former, group.node = group.node, node
    for rollout in group.rollouts:
        if rollout.sandbox is not SandboxState.WANTED and rollout.node in (former, None):
            _move(state, group, rollout, node)


def take_place(
    state: State, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, host: HostId
) -> None:
    """The rollout is on this engine host and nowhere else."""
    leave_place(state, group, rollout)
    rollout.host, rollout.expected_on, rollout.is_unclaimed = host, None, False
    rollout.is_suspended, rollout.kv_from = False, None
    engine = state.hosts[host]
    engine.load += 1
    group.members_on[host] = group.members_on.get(host, 0) + 1
    first = group.members_on[host] == 1
    engine.kv_held += _private(group, rollout) + (group.shared_tokens if first else 0)
    job.ready.pop(rollout.rollout_id, None)


def leave_place(state: State, group: GroupRecord, rollout: RolloutRecord) -> None:
    """The rollout is on no engine host."""
    if rollout.host is None:
        return
    left = group.members_on.get(rollout.host, 0) - 1
    if left > 0:
        group.members_on[rollout.host] = left
    else:
        group.members_on.pop(rollout.host, None)
    host = state.hosts.get(rollout.host)
    if host is not None:
        host.load -= 1
        host.kv_held -= _private(group, rollout) + (group.shared_tokens if left == 0 else 0)
    rollout.host = rollout.gap_since = None


def note_tokens(
    state: State, group: GroupRecord, rollout: RolloutRecord, tokens: int, shared: int
) -> None:
    """The rollout's context has grown to `tokens`, of which the group's prefix is `shared`."""
    if shared > group.shared_tokens:
        _note_shared(state, group, shared)
    host = None if rollout.host is None else state.hosts.get(rollout.host)
    before = _private(group, rollout)
    rollout.tokens = tokens
    if host is not None:
        host.kv_held += _private(group, rollout) - before


def _note_shared(state: State, group: GroupRecord, shared: int) -> None:
    """The prefix of the group became known: what each member is charged becomes less."""
    for rollout in group.rollouts:
        host = None if rollout.host is None else state.hosts.get(rollout.host)
        if host is not None:
            host.kv_held -= _private(group, rollout)
            host.kv_held += max(rollout.tokens - shared, 0)
    for host_id in group.members_on:
        host = state.hosts.get(host_id)
        if host is not None:
            host.kv_held += shared - group.shared_tokens
    group.shared_tokens = shared


def _private(group: GroupRecord, rollout: RolloutRecord) -> int:
    """Tokens that only this member has."""
    return max(rollout.tokens - group.shared_tokens, 0)


def let_go(state: State, job: JobRecord, group: GroupRecord, rollout: RolloutRecord) -> None:
    """Give back all that the current try holds; its placement is settled with it."""
    leave_place(state, group, rollout)
    give_sandbox(state, job, group, rollout)
    rollout.expected_on, rollout.is_unclaimed = None, False
    rollout.is_suspended, rollout.kv_from = False, None
    job.ready.pop(rollout.rollout_id, None)
    job.wanting.pop(rollout.rollout_id, None)


def _move(state: State, group: GroupRecord, rollout: RolloutRecord, node: HostId | None) -> None:
    """The sandbox of a rollout is on this node and on no other."""
    if rollout.node == node:
        return
    if rollout.node is not None:
        left = group.held_on[rollout.node] - 1
        if left > 0:
            group.held_on[rollout.node] = left
        else:
            del group.held_on[rollout.node]
        _count_on_node(state, rollout.node, -1)
    rollout.node = node
    if node is not None:
        group.held_on[node] = group.held_on.get(node, 0) + 1
        _count_on_node(state, node, 1)


def _count_on_node(state: State, node_id: HostId, change: int) -> None:
    node = state.hosts.get(node_id)
    if node is not None and node.kind is HostKind.NODE:
        node.load += change
