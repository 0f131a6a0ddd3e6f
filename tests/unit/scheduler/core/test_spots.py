"""Which nodes make a group's sandboxes, where nodes say what room they have."""

from dataclasses import replace

from domain.commands import ForkSandboxes, OpenGroup, PlaceRollout, ReleaseSandboxes
from domain.events import ForksDeclined, HeldRollout, HostJoined, NodeReported, SandboxReady
from domain.ids import node_host_id
from domain.schedule import NextGroup, WaitReason
from domain.states import HostKind
from scheduler.core import spots, waits
from scheduler.core.records import SandboxState
from scheduler.core.refusals import RefusalReason
from tests.unit.scheduler.core.bench import Bench
from tests.unit.scheduler.core.rooms import (
    EACH,
    bench_of,
    decline,
    forks,
    job,
    parts,
    present,
    room,
    tell,
)

A, B, C = (node_host_id(index) for index in range(3))


def ready(bench: Bench, ordinal: int = 0) -> None:
    """Every node that was asked for members of a group has them."""
    for rollout in bench.group(ordinal).rollouts:
        if rollout.sandbox is SandboxState.ASKED and rollout.node is not None:
            bench.ready(rollout, rollout.node)


def test_a_group_goes_whole_where_it_fits() -> None:
    bench = bench_of(room(EACH), room(2 * EACH), room(EACH))
    assert parts(bench) == [(B, 2)]


def test_a_group_splits_only_when_no_node_takes_it() -> None:
    bench = bench_of(room(EACH), room(EACH + 10), room(0))
    assert parts(bench) == [(A, 1), (B, 1)]
    assert bench.group(0).node == A
    assert bench.group(0).held_on == {A: 1, B: 1}


def test_members_on_two_nodes_are_placed_with_their_own_nodes() -> None:
    bench = bench_of(room(EACH), room(EACH))
    ready(bench)
    placed = bench.found(PlaceRollout, bench.commands)
    assert [(one.rollout_id, one.node) for one in placed] == [
        (bench.rollout(0, 0).rollout_id, A),
        (bench.rollout(0, 1).rollout_id, B),
    ]


def test_the_node_that_has_the_template_is_cheapest() -> None:
    shared = present(shared=40)
    bench = bench_of(room(500), room(300, templates=shared))
    assert parts(bench) == [(B, 2)]


def test_what_ended_sandboxes_taught_replaces_the_prior() -> None:
    """By the prior none takes two; somebody has learned that they need a fifth of it."""
    bench = bench_of(room(EACH, templates=present(each=EACH // 5, rollouts=30)), room(EACH))
    assert parts(bench) == [(A, 2)]


def test_a_next_try_goes_to_its_siblings_while_there_is_room() -> None:
    bench = bench_of(room(2 * EACH), room(500, pressure=0.01))
    assert parts(bench) == [(A, 2)]
    ready(bench)
    tell(bench, 0, room(EACH))
    bench.fail(bench.rollout(0))
    bench.tick()
    assert bench.rollout(0).node == A
    bench.ready(bench.rollout(0), A)
    tell(bench, 0, room(EACH - 1))
    bench.fail(bench.rollout(0))
    bench.tick(5.0)
    assert bench.rollout(0).node == B
    assert bench.rollout(0, 1).node == A


def test_a_tenant_is_spread_over_nodes_that_cost_the_same() -> None:
    bench = bench_of(room(500), room(500), room(500), plans=(job(groups_per_batch=3),))
    assert [fork.node for fork in forks(bench)] == [A, B, C]


def test_room_is_held_until_a_report_after_all_were_ready() -> None:
    bench = bench_of(room(3 * EACH), plans=(job(groups_per_batch=4),))
    assert [fork.group_id for fork in forks(bench)] == [bench.group(0).group_id]
    tell(bench, 0, room(3 * EACH))
    bench.tick()
    assert len(forks(bench)) == 1, "an older report does not hold what was sent since"
    ready(bench)
    tell(bench, 0, room(3 * EACH))
    bench.tick()
    assert len(forks(bench)) == 2


def test_without_room_no_group_opens_and_the_job_says_what_it_lacks() -> None:
    bench = bench_of(room(EACH - 10))
    assert bench.found(OpenGroup, bench.commands) == []
    reason, numbers = waits.next_group(bench.core.state, bench.job(), bench.now)
    assert reason is NextGroup.SANDBOXES
    assert dict(numbers) == {"bytes_needed": 50.0, "bytes_available": 40.0, "members": 2}
    tell(bench, 0, room(2 * EACH))
    bench.tick()
    assert parts(bench) == [(A, 2)]
    assert bench.job().lack is None


def test_places_bind_where_bytes_are_plenty() -> None:
    bench = bench_of(room(500, places=1), room(500, places=0))
    numbers = waits.next_group(bench.core.state, bench.job(), bench.now)[1]
    assert dict(numbers) == {"sandboxes_needed": 1.0, "sandboxes_available": 0.0, "members": 2}


def test_a_closed_node_takes_nothing() -> None:
    bench = bench_of(room(500, is_open=False, pressure=0.03))
    numbers = waits.next_group(bench.core.state, bench.job(), bench.now)[1]
    assert dict(numbers) == {"pressure": 0.03, "pressure_calm": 0.02, "members": 2}


def test_a_refusing_node_lets_go_and_another_is_asked() -> None:
    bench = bench_of(room(500), room(500, pressure=0.01))
    group = bench.group(0)
    decline(bench, group, 0)
    members = tuple((one.rollout_id, one.try_) for one in group.rollouts)
    assert bench.found(ReleaseSandboxes) == [ReleaseSandboxes(A, 1, members)]
    bench.tick()
    assert parts(bench) == [(A, 2), (B, 2)]
    assert [one.try_ for one in group.rollouts] == [1, 1], "no try was used up"
    assert bench.core.state.hosts[A].load == 0


def test_only_the_refused_part_moves() -> None:
    bench = bench_of(room(EACH), room(EACH), room(EACH, pressure=0.01))
    first, second = bench.group(0).rollouts
    bench.ready(first, A)
    decline(bench, bench.group(0), 1, members=(second,))
    bench.tick()
    assert (first.node, second.node) == (A, C)


def test_after_all_refused_the_wait_has_the_nodes_own_numbers() -> None:
    bench = bench_of(room(500))
    group = bench.group(0)
    decline(bench, group, 0, rule="starts.starting")
    bench.tick()
    wait = waits.wait_of(bench.core.state, bench.job(), group, group.rollouts[0], bench.now)
    assert wait.reason is WaitReason.WAITS_FOR_SANDBOX
    numbers = {"starting_bytes_needed": 100.0, "starting_bytes_available": 70.0, "members": 2}
    assert dict(wait.numbers) == numbers
    bench.tick(spots.REFUSED_S)
    assert parts(bench) == [(A, 2), (A, 2)], "the same node again, once that is some seconds ago"


def test_a_refusal_that_comes_late_or_of_a_former_epoch_changes_nothing() -> None:
    bench = bench_of(room(500), room(500))
    group = bench.group(0)
    ready(bench)
    decline(bench, group, 0)
    assert bench.found(ReleaseSandboxes, bench.commands) == []
    assert [one.sandbox for one in group.rollouts] == [SandboxState.READY] * 2
    late = ForksDeclined(A, 0, group.group_id, (), "memory.no_room", 1.0, 0.0)
    assert bench.refusal(late).reason is RefusalReason.EPOCH
    assert bench.refusal(NodeReported(A, 0, room(1))).reason is RefusalReason.EPOCH
    assert bench.refusal(NodeReported(C, 1, room(1))).reason is RefusalReason.FOREIGN


def test_what_never_fits_is_asked_so_that_the_node_ends_it_with_its_numbers() -> None:
    bench = bench_of(room(EACH - 10, largest_bytes=EACH - 1))
    assert parts(bench) == [(A, 2)]


def test_of_a_group_larger_than_an_empty_pool_as_many_start_as_fit() -> None:
    bench = bench_of(room(EACH, largest_bytes=EACH))
    assert parts(bench) == [(A, 1)]
    second = bench.rollout(0, 1)
    assert second.sandbox is SandboxState.WANTED
    bench.ready(bench.rollout(0), A)
    tell(bench, 0, room(EACH, largest_bytes=EACH))
    bench.tick()
    assert (second.sandbox, second.node) == (SandboxState.ASKED, A)


def test_a_node_that_joins_late_takes_what_waits() -> None:
    bench = bench_of(room(EACH - 10))
    bench.node(1)
    assert forks(bench) == [], "it has not said what room it has"
    tell(bench, 1, room(500))
    bench.tick()
    assert parts(bench) == [(B, 2)]


def test_a_node_says_its_room_as_it_joins() -> None:
    """By counts a whole job would be on the first node that dials a new leader."""
    bench = Bench()
    bench.feed(HostJoined(A, 1, HostKind.NODE, None, 0, room=room(EACH)))
    bench.start(job(groups_per_batch=4))
    assert forks(bench) == []
    bench.feed(HostJoined(B, 1, HostKind.NODE, None, 0, room=room(2 * EACH)))
    bench.tick()
    assert [fork.node for fork in forks(bench)] == [B]


def test_a_lost_node_takes_the_room_it_held_with_it() -> None:
    bench = bench_of(room(EACH), room(EACH))
    ready(bench)
    bench.lost(A)
    assert bench.group(0).node == B
    assert bench.group(0).held_on == {B: 1}
    bench.node(0, epoch=2)
    tell(bench, 0, room(2 * EACH), epoch=2)
    bench.tick()
    assert bench.rollout(0).node == A
    assert bench.rollout(0).try_ == 2


def test_a_node_says_again_and_gives_back_what_another_was_asked_for() -> None:
    """Its answer was lost with its link: by then the try is on another node."""
    bench = bench_of(room(500), room(500, pressure=0.01))
    rollout = bench.rollout(0)
    decline(bench, bench.group(0), 0)
    bench.tick()
    ready(bench)
    held = (HeldRollout(rollout.rollout_id, 1, 0, 0),)
    bench.feed(HostJoined(A, 1, HostKind.NODE, None, 0, held))
    assert bench.found(ReleaseSandboxes) == [ReleaseSandboxes(A, 1, ((rollout.rollout_id, 1),))]
    assert rollout.node == B
    assert bench.refusal(SandboxReady(rollout.rollout_id, 1, A, 1)).reason is RefusalReason.EPOCH


def test_a_try_that_a_node_still_makes_is_asked_of_nobody_else() -> None:
    """As a new leader finds it: wanted, and in the snapshot of a node that joins."""
    bench = bench_of(room(EACH), room(EACH))
    second = bench.rollout(0, 1)
    decline(bench, bench.group(0), 1, members=(second,))
    held = (HeldRollout(second.rollout_id, 1, 0, 0, is_starting=True),)
    bench.feed(HostJoined(B, 1, HostKind.NODE, None, 0, held))
    assert (second.sandbox, second.node) == (SandboxState.ASKED, B)
    before = len(forks(bench))
    bench.tick()
    assert len(forks(bench)) == before
    bench.ready(second, B)
    assert second.sandbox is SandboxState.READY


def test_without_templates_or_reports_nodes_are_chosen_by_counts() -> None:
    by_count = bench_of(room(EACH), room(500), plans=(job(templates=()),))
    assert parts(by_count) == [(A, 2)]
    unsaid = Bench()
    for index in (0, 1):
        unsaid.node(index)
    unsaid.start(job())
    assert parts(unsaid) == [(A, 2)]
    journals = (replace(job().templates[0], ceiling_bytes=0),)
    assert parts(bench_of(room(0), plans=(job(templates=journals),))) == [(A, 2)]


def test_a_mixed_job_is_placed_by_its_largest_template() -> None:
    larger = replace(job().templates[0], name="other/agent", ceiling_bytes=3 * EACH)
    bench = bench_of(room(5 * EACH), plans=(job(templates=(*job().templates, larger)),))
    assert bench.found(ForkSandboxes, bench.commands) == []
    numbers = dict(waits.next_group(bench.core.state, bench.job(), bench.now)[1])
    assert numbers["bytes_needed"] == 3 * EACH
