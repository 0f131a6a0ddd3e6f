"""Groups go where they cost least; ties by pressure, spread and id; they split only when they must."""

from random import Random

import pytest

from domain.ids import OrganizationId
from domain.sandbox import SandboxPurpose
from sandboxes.core.admission import Refused, Resource, Why
from sandboxes.core.asks import GroupAsk, NodeReport, Placement
from sandboxes.core.names import NodeId, TemplateId
from sandboxes.core.placement import Pool
from sandboxes.core.rooms import FEW, Holders, RoomTree
from tests.unit.sandboxes.core.made import ask, report

T = TemplateId("t")


def pool(*reports: NodeReport, reserve: int = 0) -> Pool:
    made = Pool(16, reserve)
    for one in reports:
        made.report(one)
    return made


def nodes_of(answer: tuple[Placement, ...] | Refused) -> list[tuple[str, int]]:
    assert not isinstance(answer, Refused)
    return [(one.node_id, one.members) for one in answer]


def test_the_node_that_holds_the_template_is_cheapest() -> None:
    made = pool(report(0), report(1, templates=frozenset({T}), pressure=0.03))
    placed = made.place(ask())
    assert nodes_of(placed) == [("node0001", 4)]
    assert not isinstance(placed, Refused)
    assert placed[0].cost_bytes == 40


def test_the_template_is_paid_where_its_holder_is_full() -> None:
    made = pool(report(0), report(1, templates=frozenset({T}), room_bytes=39.0))
    placed = made.place(ask())
    assert not isinstance(placed, Refused)
    assert (placed[0].node_id, placed[0].cost_bytes) == ("node0000", 60)


def test_less_overhead_costs_less() -> None:
    made = pool(report(0, overhead_bytes=3), report(1, overhead_bytes=2, pressure=0.04))
    assert nodes_of(made.place(ask())) == [("node0001", 4)]


def test_at_equal_cost_the_calmer_node_wins() -> None:
    made = pool(report(0, pressure=0.03), report(1, pressure=0.001))
    assert nodes_of(made.place(ask())) == [("node0001", 4)]


def test_at_equal_cost_and_pressure_a_tenant_is_spread() -> None:
    made = pool(report(0, room_bytes=500.0), report(1, room_bytes=500.0))
    first = made.place(ask(1, template=TemplateId("a")))
    second = made.place(ask(2, template=TemplateId("b")))
    other = made.place(ask(3, template=TemplateId("c"), tenant=OrganizationId("other")))
    assert [nodes_of(one)[0][0] for one in (first, second, other)] == [
        "node0000", "node0001", "node0000",
    ]  # fmt: skip


def test_a_tenant_is_spread_where_its_template_shares_nothing() -> None:
    made = pool(*(report(index, room_bytes=500.0) for index in range(3)))
    nodes = [nodes_of(made.place(ask(number, template_bytes=0.0)))[0][0] for number in range(3)]
    assert nodes == ["node0000", "node0001", "node0002"]


def test_later_members_go_to_their_siblings_while_these_have_room() -> None:
    made = pool(report(0), report(1, pressure=0.03), report(2, pressure=0.03))
    near = (NodeId("gone"), NodeId("node0002"))
    assert nodes_of(made.place(ask(near=near))) == [("node0002", 4)]
    assert nodes_of(made.place(ask(2, near=near, members=5))) == [("node0000", 5)]


def test_a_node_that_refused_is_left_out() -> None:
    made = pool(report(0), report(1), report(2))
    refusing = frozenset((NodeId("node0000"), NodeId("node0001")))
    near = (NodeId("node0001"),)
    assert nodes_of(made.place(ask(without=refusing, near=near))) == [("node0002", 4)]


def test_of_what_an_empty_pool_would_not_take_the_largest_part_is_placed() -> None:
    made = pool(report(0, room_bytes=42.0, largest_bytes=50.0), report(1, largest_bytes=40.0))
    assert made.empty_takes(ask(members=4)) == 4
    assert made.empty_takes(ask(members=9)) == 5
    part = made.place_part(ask(members=9))
    assert not isinstance(part, Refused)
    assert (part.node_id, part.members) == ("node0001", 8)
    assert isinstance(pool(report(0, room_bytes=12.0)).place_part(ask()), Refused)


def test_a_group_stays_whole_where_any_node_takes_it() -> None:
    made = pool(report(0, room_bytes=55.0), report(1, room_bytes=60.0))
    assert nodes_of(made.place(ask())) == [("node0001", 4)]


def test_a_group_splits_into_the_largest_parts_when_no_node_fits_it() -> None:
    made = pool(report(0, room_bytes=45.0), report(1, room_bytes=59.0), report(2, room_bytes=59.0))
    assert nodes_of(made.place(ask())) == [("node0001", 3), ("node0000", 1)]


def test_a_refusal_takes_nothing_and_names_what_is_missing() -> None:
    made = pool(report(0, room_bytes=45.0), report(1, room_bytes=12.0))
    refused = made.place(ask())
    assert refused == Refused(Why.NO_ROOM, Resource.MEMORY, 10.0, 5.0)
    assert made.room_of(NodeId("node0000")) == (45.0, 100.0)
    assert made.room_of(NodeId("node0001")) == (12.0, 100.0)


def test_cpu_binds_where_bytes_are_plenty() -> None:
    made = pool(report(0, room_cores=0.5))
    assert made.place(ask()) == Refused(Why.NO_ROOM, Resource.CPU, 1.0, 0.5)


def test_what_no_empty_node_takes_never_fits() -> None:
    made = pool(report(0, largest_bytes=25.0, room_bytes=25.0))
    assert made.place(ask()) == Refused(Why.NEVER_FITS, Resource.MEMORY, 30.0, 25.0)
    cores = pool(report(0, largest_cores=0.5, room_cores=0.5)).place(ask())
    assert cores == Refused(Why.NEVER_FITS, Resource.CPU, 1.0, 0.5)


def test_an_empty_pool_says_that_it_is_empty() -> None:
    refused = Pool(4).place(ask())
    assert isinstance(refused, Refused)
    assert refused.why is Why.NO_NODE


def test_pressed_and_closed_nodes_take_nothing() -> None:
    made = pool(report(0, pressure=0.05), report(1, is_open=False))
    refused = made.place(ask())
    assert isinstance(refused, Refused)
    assert refused.why is Why.UNDER_PRESSURE


def test_the_grading_reserve_is_for_graders_only() -> None:
    made = pool(report(0, room_bytes=20.0), reserve=40)
    refused = made.place(ask())
    assert isinstance(refused, Refused)
    assert refused.why is Why.GRADING_RESERVE
    assert nodes_of(made.place(ask(members=3, purpose=SandboxPurpose.GRADER))) == [("node0000", 3)]


def test_a_placement_holds_its_room_until_a_report_includes_it() -> None:
    made = pool(report(0))
    placed = made.place(ask())
    assert not isinstance(placed, Refused)
    made.report(report(0))
    assert made.room_of(NodeId("node0000")) == (40.0, 96.0)
    made.report(report(0, room_bytes=45.0, templates=frozenset({T})), [placed[0].placement_id])
    assert made.room_of(NodeId("node0000")) == (45.0, 100.0)
    again = made.place(ask(2))
    assert not isinstance(again, Refused)
    assert again[0].cost_bytes == 40


def test_a_cancelled_placement_gives_room_and_template_back() -> None:
    made = pool(report(0))
    placed = made.place(ask())
    assert not isinstance(placed, Refused)
    made.cancel(placed[0].placement_id)
    assert made.room_of(NodeId("node0000")) == (100.0, 100.0)
    again = made.place(ask(2))
    assert not isinstance(again, Refused)
    assert again[0].cost_bytes == 60


def test_a_node_that_leaves_says_what_was_under_way() -> None:
    made = pool(report(0), report(1, room_bytes=10.0))
    placed = made.place(ask())
    assert made.leave(NodeId("node0000")) == list(placed if not isinstance(placed, Refused) else ())
    assert isinstance(made.place(ask(2)), Refused)
    made.report(report(0))
    assert nodes_of(made.place(ask(3))) == [("node0000", 4)]


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_the_best_of_a_scan_over_all_nodes(seed: int) -> None:
    """Least cost, then pressure, on pools where any number of nodes holds the template."""
    chance = Random(seed)
    reports = {}
    made = Pool(100)
    for index in range(100):
        holds = frozenset({T}) if chance.random() < 0.5 else frozenset()
        one = report(
            index, room_bytes=chance.uniform(0, 90), room_cores=chance.uniform(0, 8),
            overhead_bytes=chance.choice([1, 2]), pressure=chance.choice([0.001, 0.01, 0.03, 0.06]),
            templates=holds,
        )  # fmt: skip
        reports[one.node_id] = one
        made.report(one)
    for number in range(60):
        wanted = ask(number, members=chance.randint(1, 5))
        expected = scanned(made, reports, wanted)
        placed = made.place(wanted)
        if expected is None:
            assert isinstance(placed, Refused) or len(placed) > 1
        else:
            assert not isinstance(placed, Refused)
            assert len(placed) == 1
            assert (placed[0].cost_bytes, step_of(reports[placed[0].node_id].pressure)) == expected
        if not isinstance(placed, Refused):
            for part in placed:
                node = reports[part.node_id]
                room, cores = made.room_of(part.node_id)
                assert room >= -1e-9
                assert cores >= -1e-9
                reports[part.node_id] = report(
                    int(part.node_id[4:]), room_bytes=room, room_cores=cores,
                    overhead_bytes=node.overhead_bytes, pressure=node.pressure,
                    templates=frozenset({T}),
                )  # fmt: skip
                made.report(reports[part.node_id], [part.placement_id])


def step_of(pressure: float) -> int:
    return sum(pressure >= bound for bound in (0.005, 0.02))


def scanned(
    made: Pool, reports: dict[NodeId, NodeReport], wanted: GroupAsk
) -> tuple[float, int] | None:
    found = []
    for node_id, one in reports.items():
        room, cores = made.room_of(node_id)
        cost = wanted.members * (wanted.expected_bytes + one.overhead_bytes)
        cost += 0.0 if T in one.templates else wanted.template_bytes
        if one.pressure < 0.05 and room >= cost and cores >= wanted.members:
            found.append((cost, step_of(one.pressure)))
    return min(found, default=None)


def test_both_indexes_find_the_first_place_that_a_scan_finds() -> None:
    chance = Random(5)
    tree, holders = RoomTree(80), Holders(80)
    rooms: dict[int, tuple[float, float]] = {}
    for _ in range(3_000):
        place = chance.randrange(80)
        if chance.random() < 0.4:
            rooms.pop(place, None)
            tree.drop(place)
            holders.drop(place)
        else:
            rooms[place] = (chance.randint(0, 20), chance.randint(0, 20))
            tree.put(place, *rooms[place])
            holders.put(place, *rooms[place])
        need, cores, begin = chance.randint(0, 20), chance.randint(0, 20), chance.randrange(82)
        fitting = [p for p, (b, c) in rooms.items() if p >= begin and b >= need and c >= cores]
        expected = min(fitting, default=None)
        assert tree.first(need, cores, begin) == expected
        assert holders.first(need, cores, begin) == expected
        assert len(holders) == len(rooms)
    assert len(rooms) > FEW
