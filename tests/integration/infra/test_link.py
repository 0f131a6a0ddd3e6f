"""Host and leader over a real socket: mutual proof, snapshot, frames, refusals."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from domain.events import HostJoined, TurnFinished
from domain.ids import HostId, RolloutId
from domain.states import HostKind
from domain.wire import HostSnapshot, Ranks
from infra.link import LeaderAddress, LeaderLink, changes
from infra.proofs import key_sha
from scheduler.hosts import Connected, Hosts
from stores.system.leadership import Term
from tests.support import eventually

HOST = HostId("host_x_engine0")
KEY = b"host key"


class Twin:
    """A leader's host registry that records what it is told."""

    def __init__(self, term: int = 5, secret: bytes | None = key_sha(KEY)) -> None:
        self.joined: list[HostJoined] = []
        self.frames: list[object] = []
        self.hosts = Hosts(self._key_of, self.joined.append, self._on_frame)
        self.term = Term(term, b"leader key")
        self._secret = secret

    async def _key_of(self, host: HostId, epoch: int) -> bytes | None:
        return self._secret if (host, epoch) == (HOST, 3) else None

    def _on_frame(self, peer: Connected, frame: object) -> None:
        self.frames.append(frame)


@asynccontextmanager
async def linked(
    twin: Twin,
    on_frame: Callable[[object], None] = print,
    key: bytes = b"leader key",
    phases: dict[RolloutId, str] | None = None,
) -> AsyncIterator[LeaderLink]:
    address = await twin.hosts.open()
    twin.hosts.lead(twin.term)

    async def find_leader() -> LeaderAddress:
        return LeaderAddress(twin.term.number, address, key)

    link = LeaderLink(
        HOST,
        3,
        KEY,
        find_leader=find_leader,
        snapshot=lambda: HostSnapshot(
            HOST, 3, HostKind.ENGINE, None, 8, kv_tokens=4096, may_migrate=True
        ),
        on_frame=on_frame,
        phases=lambda: dict(phases or {}),
    )
    running = [asyncio.create_task(link.run()), asyncio.create_task(twin.hosts.beat())]
    try:
        yield link
    finally:
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await twin.hosts.close()


async def test_proven_host_sends_its_snapshot_then_frames_both_ways() -> None:
    twin = Twin()
    received: list[object] = []
    async with linked(twin, received.append) as link:
        await eventually(lambda: twin.joined, 5.0)
        fact = TurnFinished(RolloutId("ro_x_1_0"), 1, 1, 0, 9, 4, 0, 0.1)
        link.send(fact)
        await eventually(lambda: twin.frames, 5.0)
        assert twin.hosts.send(HOST, 3, Ranks(((RolloutId("ro_x_1_0"), 2),)))
        await eventually(lambda: received, 5.0)
    joined = twin.joined[0]
    assert (joined.slots, joined.kv_tokens, joined.may_migrate) == (8, 4096, True)
    assert twin.frames == [fact]
    assert received == [Ranks(((RolloutId("ro_x_1_0"), 2),))]


async def test_host_with_a_wrong_key_never_joins() -> None:
    twin = Twin(secret=key_sha(b"another key"))
    async with linked(twin) as link:
        await eventually(lambda: link.dials >= 2, 5.0)
    assert twin.joined == []


async def test_leader_that_cannot_prove_itself_gets_no_snapshot() -> None:
    twin = Twin()
    async with linked(twin, key=b"a forged key") as link:
        await eventually(lambda: link.dials >= 2, 5.0)
    assert twin.joined == []


async def test_host_dials_and_snapshots_again_after_a_broken_connection() -> None:
    twin = Twin()
    async with linked(twin):
        await eventually(lambda: twin.joined, 5.0)
        await twin.hosts.connected[HOST].channel.close()
        await eventually(lambda: len(twin.joined) == 2, 5.0)


async def test_frame_for_another_epoch_is_not_sent() -> None:
    twin = Twin()
    async with linked(twin):
        await eventually(lambda: twin.joined, 5.0)
        assert not twin.hosts.send(HOST, 2, Ranks(()))


async def test_a_leader_hears_what_rollouts_do_and_when_they_leave() -> None:
    one, other = RolloutId("ro_x_1_0"), RolloutId("ro_x_1_1")
    twin, phases = Twin(), {one: "running", other: "in_tool"}

    def heard() -> dict[RolloutId, str]:
        peer = twin.hosts.connected.get(HOST)
        return {} if peer is None else {r: phase for r, (phase, _) in peer.phases.items()}

    async with linked(twin, phases=phases):
        await eventually(lambda: heard() == phases, 5.0)
        del phases[one]
        phases[other] = "running"
        await eventually(lambda: heard() == {other: "running"}, 5.0)


def test_only_changes_are_told() -> None:
    one, other, third = RolloutId("ro_1"), RolloutId("ro_2"), RolloutId("ro_3")
    told = {one: "running", other: "in_tool"}
    assert changes(told, {one: "running", third: "saving"}) == {other: "", third: "saving"}
    assert changes(told, told) == {}


async def test_host_that_served_a_newer_term_obeys_no_older_leader() -> None:
    twin, looks = Twin(term=5), 0
    async with linked(twin) as link:
        await eventually(lambda: twin.joined, 5.0)
        address = LeaderAddress(4, "nowhere:1", b"leader key")

        async def find_leader() -> LeaderAddress:
            nonlocal looks
            looks += 1
            return address

        link._find_leader = find_leader
        before = link.dials
        await twin.hosts.connected[HOST].channel.close()
        await eventually(lambda: looks >= 2, 5.0)
        assert link.dials == before
