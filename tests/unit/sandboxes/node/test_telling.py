"""What a node says of its room, and when."""

from dataclasses import dataclass, field

from domain.sandbox import NodeRoom, SandboxPurpose, template_name
from infra.clock import SystemClock
from sandboxes.core.names import GIB, MIB
from sandboxes.node.account import NodeAccount
from sandboxes.node.slots import Slots
from sandboxes.node.telling import AGAIN_S, RoomTeller, room_of
from sandboxes.ports import SandboxStats
from tests.unit.sandboxes.node.made import AGENT, GRADER, account, ask, learned, member


@dataclass
class Hand(SystemClock):
    """A clock that a test moves."""

    at: float = 0.0

    def monotonic(self) -> float:
        return self.at


@dataclass
class Told:
    """A teller and what it told."""

    node: NodeAccount = field(default_factory=account)
    clock: Hand = field(default_factory=Hand)
    said: list[NodeRoom] = field(default_factory=list)
    teller: RoomTeller = field(init=False)

    def __post_init__(self) -> None:
        slots = Slots(8, 1, self.node)
        self.teller = RoomTeller(self.node, slots, lambda: None, self.said.append, self.clock)

    def look(self, seconds: float = 1.0) -> int:
        """How many reports there were once the teller looked again."""
        self.clock.at += seconds
        self.teller.look()
        return len(self.said)


def said(node: NodeAccount) -> NodeRoom:
    return room_of(node, Slots(8, 2, node), 0.01)


def test_an_empty_node_has_room_below_packing_and_the_grading_reserve() -> None:
    whole, kept = said(account(10 * GIB)), said(account(10 * GIB, grading_reserve=1))
    assert (whole.room_bytes, whole.largest_bytes) == (9 * GIB, 9 * GIB)
    assert whole.room_bytes - kept.room_bytes == 576 * MIB
    assert (whole.places, whole.places_max, whole.pressure, whole.is_open) == (6, 6, 0.01, True)


def test_what_runs_is_taken_off_with_the_reserve_that_it_will_grow_into() -> None:
    node = account(10 * GIB)
    node.begin(ask(2))
    node.measure(member(0), SandboxStats(100 * MIB, 3))
    room = said(node)
    assert room.private_bytes == 100 * MIB
    assert room.reserve_bytes > GIB
    assert room.room_bytes == 9 * GIB - 100 * MIB - room.reserve_bytes
    assert room.largest_bytes == 9 * GIB


def test_a_template_is_told_with_what_one_sandbox_alone_would_need() -> None:
    node = account()
    node.begin(ask(1))
    (prior,) = said(node).templates
    assert (prior.name, prior.each_bytes) == (template_name("ever", AGENT), GIB)
    assert (prior.is_present, prior.rollouts) == (True, 0)
    node.end(member(0))
    learned(node, held_mib=100)
    (taught,) = said(node).templates
    assert 100 * MIB <= taught.each_bytes < 200 * MIB
    assert (taught.is_present, taught.rollouts) == (False, 24)


def test_templates_of_graders_are_not_told() -> None:
    node = account()
    node.begin(ask(1, purpose=GRADER))
    assert said(node).templates == ()


def test_places_follow_the_counts_of_agents_and_of_all() -> None:
    slots = Slots(4, 1, None)
    assert slots.free(AGENT) == 3
    assert slots.free(SandboxPurpose.GRADER) == 4


def test_news_are_told_at_once_and_the_same_only_now_and_then() -> None:
    told = Told()
    assert told.look() == 1
    assert told.look() == 1
    assert told.look(AGAIN_S) == 2
    told.node.begin(ask(1))
    assert told.look() == 3
    told.node.measure(member(0), SandboxStats(1 * MIB, 3))
    assert told.look() == 3, "a thousandth of the node is no news"


def test_what_a_snapshot_said_is_no_news_after_it() -> None:
    told = Told()
    assert told.teller.said() == said_by(told)
    assert told.look() == 0
    told.node.begin(ask(1))
    assert told.look() == 1


def said_by(told: Told) -> NodeRoom:
    return room_of(told.node, told.teller.slots, 0.0)
