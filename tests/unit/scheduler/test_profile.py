"""Used against declared: what nodes say of an attempt's sandboxes."""

from typing import Any, cast

from domain.ids import AttemptId, HostId
from domain.states import HostKind
from scheduler.hosts import Connected, Hosts
from scheduler.profile import used_bytes

MIB = 1 << 20
MINE = AttemptId("att_mine")


async def no_key(host: HostId, epoch: int) -> bytes | None:
    return None


def hosts(**figures: dict[str, float]) -> Hosts:
    made = Hosts(no_key, lambda joined: None, lambda peer, frame: None)
    for name, said in figures.items():
        kind = HostKind.NODE if name.startswith("node") else HostKind.ENGINE
        nobody = cast("Any", None)
        peer = Connected(HostId(name), 1, kind, nobody, nobody, figures=said)
        made.connected[HostId(name)] = peer
    return made


def test_an_attempts_bytes_are_added_up_over_nodes_in_whole_mebibytes() -> None:
    found = hosts(
        node0={"private_bytes": 9.0 * MIB, "private_bytes/att_mine": 2.2 * MIB},
        node1={"private_bytes": 3.0 * MIB, "private_bytes/att_mine": 3.0 * MIB},
        engine0={"private_bytes": 1.0, "private_bytes/att_mine": 90.0 * MIB},
    )
    assert used_bytes(MINE, found) == 5 * MIB
    assert used_bytes(AttemptId("att_other"), found) == 0


def test_without_a_node_that_measures_nothing_is_said() -> None:
    assert used_bytes(MINE, hosts()) is None
    assert used_bytes(MINE, hosts(node0={"tries": 4.0})) is None
