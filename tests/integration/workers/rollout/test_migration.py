"""A rollout moves in a tool gap: no token is lost or repeated, whatever is lost on the way."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from domain.events import TurnSampled
from domain.ids import RolloutId
from domain.states import End
from domain.trajectory import Trajectory
from domain.wire import Place, Suspend
from tests.integration.workers.rollout.leader import neighbours
from tests.integration.workers.rollout.two_hosts import ANSWERS, OTHER, TwoHosts, two_hosts
from tests.integration.workers.rollout.world import ENGINE, World
from tests.support.waiting import eventually
from tests.unit.workers.rollout.builders import ids, text
from workers.rollout.kv_transfer import transfer as transfer_module
from workers.rollout.kv_transfer.transfer import KEEP_S

pytestmark = [pytest.mark.integration]

WHOLE = "^12+07+30=c12+07;r19;c19+30;r49;c49+01;r50;a50;"
"""The record of the rollout, wherever it was sampled."""


@pytest.fixture
async def pair(request: pytest.FixtureRequest, world: World) -> AsyncIterator[TwoHosts]:
    """The parameter is what the second host calls its machine: another one than the first's."""
    here: str | None = getattr(request, "param", None)
    async with neighbours(world) as leader, two_hosts(world, leader, here) as one:
        yield one


async def started(pair: TwoHosts, held_turn: int = 1) -> RolloutId:
    """A rollout in the tool gap of a turn on the first host."""
    _, (rollout,) = await pair.world.open_group(1)
    pair.node.journal(rollout).hold(held_turn)
    await pair.place(rollout, ENGINE)
    await pair.in_gap(held_turn)
    return rollout


async def whole(pair: TwoHosts, rollout: RolloutId, hop: int) -> Trajectory:
    """The rollout has ended once, at this hop, with every token of every turn once."""
    closed = await pair.closed()
    assert (closed.end, closed.hop, closed.turns) == (End.DONE, hop, len(ANSWERS))
    trajectory = await pair.trajectory(rollout)
    (segment,) = trajectory.segments
    assert text(segment.token_ids) == WHOLE
    assert sum(segment.mask) == sum(len(ids(answer)) for answer in ANSWERS)
    journal = pair.node.journal(rollout)
    assert [text(turn.token_ids) for turn in journal.turns] == list(ANSWERS)
    assert journal.replies_run == len(ANSWERS), "each reply ran once"
    assert pair.a.transfer.held_bytes == 0
    assert not pair.a.host.snapshot().held
    assert not pair.b.host.snapshot().held
    return trajectory


async def released(pair: TwoHosts, rollout: RolloutId, turn: int = 1) -> None:
    """The next host waits for the running tool; now it ends."""
    journal = pair.node.journal(rollout)
    await eventually(lambda: pair.hop in journal.attached)
    journal.held[turn].set()


@pytest.mark.parametrize("pair", [None, "elsewhere"], indirect=True, ids=["memory", "http"])
async def test_a_rollout_moves_with_its_pages_while_its_tool_runs(pair: TwoHosts) -> None:
    rollout = await started(pair)
    await pair.move(rollout, OTHER)
    await eventually(lambda: pair.b.transfer.counts["fetches"])
    assert pair.a.transfer.held_bytes == 0, "the source has its room back while the tool runs"
    await released(pair, rollout)
    await whole(pair, rollout, hop=2)
    ticket_tokens = len("^12+07+30=c12+07;r19;c19+30")
    assert pair.b.transfer.counts["imported_tokens"] == ticket_tokens
    assert [one.request_id.rpartition("/")[2] for one in pair.a.engine.requests] == ["0", "1"]
    assert [one.request_id.rpartition("/")[2] for one in pair.b.engine.requests] == ["2", "3"]
    assert pair.b.engine.requests[0].rank == 3
    assert [one.hop for one in pair.heard(TurnSampled)][:2] == [1, 1]
    assert (2, 2) in pair.finished_turns(), "the new host tells of the turn whose tool it awaited"


async def test_a_target_that_comes_first_makes_the_source_let_go(pair: TwoHosts) -> None:
    rollout = await started(pair)
    pair.lost.append((ENGINE, Suspend))
    await pair.move(rollout, OTHER)
    await eventually(lambda: pair.b.transfer.counts["fetches"])
    assert not pair.a.host.snapshot().held
    await released(pair, rollout)
    await whole(pair, rollout, hop=2)


async def test_frames_that_come_again_or_late_change_nothing(pair: TwoHosts) -> None:
    rollout = await started(pair)
    await pair.move(rollout, OTHER)
    for kind in (Suspend, Place, Suspend, Place):
        pair.again(kind)
    await released(pair, rollout)
    await whole(pair, rollout, hop=2)
    pair.again(Place)
    pair.again(Suspend)
    await eventually(lambda: pair.a.host.counts["refused"] + pair.b.host.counts["repeated"] >= 2)
    assert len(pair.a.engine.requests) == len(pair.b.engine.requests) == 2


async def test_a_rollout_that_came_back_is_not_taken_off_by_an_old_word(pair: TwoHosts) -> None:
    rollout = await started(pair)
    await pair.move(rollout, OTHER)
    await eventually(lambda: pair.b.transfer.counts["fetches"])
    await pair.move(rollout, ENGINE)
    await eventually(lambda: [one.hop for one in pair.a.host.snapshot().held] == [3])
    pair.again(Suspend)
    await released(pair, rollout)
    await whole(pair, rollout, hop=3)
    assert pair.b.engine.requests == []


async def test_a_lost_placement_is_made_again_and_computes_anew(pair: TwoHosts) -> None:
    rollout = await started(pair)
    pair.lost.append((OTHER, Place))
    await pair.move(rollout, OTHER)
    await eventually(lambda: pair.a.transfer.held_bytes)
    pair.lost.clear()
    await pair.place(rollout, OTHER)
    await released(pair, rollout)
    await eventually(lambda: pair.b.engine.requests)
    pair.a.wall[0] += KEEP_S
    pair.a.transfer.sweep()
    await whole(pair, rollout, hop=3)
    assert pair.b.transfer.counts["imports"] == 0
    assert pair.a.transfer.counts["exports_expired"] == 1


def _expired(pair: TwoHosts, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pair.a.transfer, "_keep_s", -1.0)


def _torn(pair: TwoHosts, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transfer_module, "checksum", lambda page: "0" * 32)


def _full(pair: TwoHosts, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pair.a.transfer, "_bytes_max", 1)


def _evicted(pair: TwoHosts, patch: pytest.MonkeyPatch) -> None:
    pair.a.engine._keys._runs.clear()


@pytest.mark.parametrize(
    ("spoil", "counted"),
    [
        (_expired, {"fetch_failed_gone": 1}),
        (_torn, {"fetches": 1, "import_failed_checksum": 1}),
        (_full, {"fetch_failed_no_room": 1}),
        (_evicted, {"fetch_failed_no_pages": 1}),
    ],
)
async def test_pages_that_cannot_be_had_cost_a_prefill_and_nothing_else(
    pair: TwoHosts,
    spoil: Callable[[TwoHosts, pytest.MonkeyPatch], None],
    counted: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rollout = await started(pair)
    spoil(pair, monkeypatch)
    await pair.move(rollout, OTHER)
    await released(pair, rollout)
    await whole(pair, rollout, hop=2)
    assert pair.b.transfer.counts == counted


async def test_a_source_that_is_gone_costs_a_prefill(pair: TwoHosts) -> None:
    rollout = await started(pair)
    source = pair.leader.hosts.connected[ENGINE]
    await pair.a.die()
    pair.leader.hosts.connected[ENGINE] = source
    await pair.move(rollout, OTHER)
    await released(pair, rollout)
    await whole(pair, rollout, hop=2)
    assert pair.b.transfer.counts == {"fetch_failed_unreachable": 1}


async def test_a_tool_that_ends_while_the_rollout_moves_is_heard_once(pair: TwoHosts) -> None:
    rollout = await started(pair)
    pair.lost.append((OTHER, Place))
    await pair.move(rollout, OTHER)
    pair.node.journal(rollout).held[1].set()
    await eventually(lambda: pair.node.journal(rollout).turns[1].replied)
    pair.lost.clear()
    pair.again(Place)
    await whole(pair, rollout, hop=2)
    assert pair.b.transfer.counts["imports"] == 1
    assert (2, 2) in pair.finished_turns()


async def test_members_that_stay_are_not_disturbed_by_one_that_leaves(pair: TwoHosts) -> None:
    _, members = await pair.world.open_group(3)
    for member in members:
        pair.node.journal(member).hold(1)
        pair.hop = 0
        await pair.place(member, ENGINE)
    await eventually(lambda: len({one.rollout_id for one in pair.heard(TurnSampled)}) == 3)
    await pair.move(members[1], OTHER)
    await released(pair, members[1])
    await eventually(lambda: len(pair.leader.told) and pair.node.journal(members[1]).seals)
    for member in (members[0], members[2]):
        pair.node.journal(member).held[1].set()
    await eventually(lambda: all(pair.node.journal(member).seals for member in members), 20.0)
    await eventually(lambda: not pair.a.host.snapshot().held)
    for member in members:
        assert text((await pair.trajectory(member)).segments[0].token_ids) == WHOLE
    assert {one.rollout_id for one in pair.b.engine.requests} == {members[1]}
    await asyncio.sleep(0)
