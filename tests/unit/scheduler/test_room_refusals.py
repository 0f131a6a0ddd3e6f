"""A node's refusals, as numbers of the rollouts that wait for it."""

from typing import Any, cast

import pytest

from domain.ids import AttemptId, HostId, RolloutId, group_id, rollout_id
from domain.states import HostKind
from infra.pool_frames import RoomRefused
from scheduler import room_refusals
from scheduler.hosts import Connected, Hosts

NODE = HostId("host_node0")
GROUP = group_id(AttemptId("att_1"), 0)


async def no_key(host: HostId, epoch: int) -> bytes | None:
    return None


def hosts() -> Hosts:
    made = Hosts(no_key, lambda joined: None, lambda peer, frame: None)
    nobody = cast("Any", None)
    made.connected[NODE] = Connected(NODE, 1, HostKind.NODE, nobody, nobody)
    return made


def refused(rule: str, *indexes: int) -> RoomRefused:
    members = tuple((rollout_id(GROUP, index), 1) for index in indexes)
    return RoomRefused(GROUP, members, rule, 7.0, 3.0, "in words")


@pytest.mark.parametrize(
    ("rule", "numbers"),
    [
        ("memory.no_room", {"bytes_needed": 7.0, "bytes_available": 3.0}),
        ("starts.starting", {"starting_bytes_needed": 7.0, "starting_bytes_available": 3.0}),
        ("pressure.under_pressure", {"pressure": 7.0, "pressure_calm": 3.0}),
        ("sandboxes", {"sandboxes_needed": 7.0, "sandboxes_available": 3.0}),
        ("a_later_version_knows", {}),
    ],
)
def test_each_rule_has_its_own_numbers(rule: str, numbers: dict[str, float]) -> None:
    known = hosts()
    room_refusals.note(known.connected[NODE], refused(rule, 0))
    assert room_refusals.numbers(known, NODE, rollout_id(GROUP, 0)) == numbers


def test_who_was_not_refused_or_has_no_node_has_no_numbers() -> None:
    known = hosts()
    room_refusals.note(known.connected[NODE], refused("sandboxes", 0))
    assert room_refusals.numbers(known, NODE, rollout_id(GROUP, 1)) == {}
    assert room_refusals.numbers(known, None, rollout_id(GROUP, 0)) == {}
    assert room_refusals.numbers(known, HostId("gone"), rollout_id(GROUP, 0)) == {}


def test_the_newest_answer_counts_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room_refusals, "REFUSED_MAX", 2)
    peer = hosts().connected[NODE]
    room_refusals.note(peer, refused("sandboxes", 0, 1))
    room_refusals.note(peer, refused("memory.no_room", 0))
    room_refusals.note(peer, refused("sandboxes", 2))
    assert {RolloutId(name): one.rule for name, one in peer.refused.items()} == {
        rollout_id(GROUP, 0): "memory.no_room",
        rollout_id(GROUP, 2): "sandboxes",
    }
