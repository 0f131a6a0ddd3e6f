"""Closing against the real Postgres: compare-and-set, the group's count, stores that are away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from domain import commands as c
from domain.errors import FencedOut, ObjectNotWritten, StoreUnavailable
from domain.events import RolloutClosed
from domain.states import DropReason, End
from domain.trajectory import Trajectory
from infra.clock import ManualClock
from infra.codec import from_msgpack
from infra.names import trajectory_path
from stores import tables as t
from stores.blobs import Blob, Blobs
from stores.system import coordination
from stores.unit_of_work import Database, Fence
from tests.integration.workers.rollout.world import JOB, World, finished_episode
from tests.support import eventually
from tests.unit.workers.rollout.builders import AgentTwin
from workers.rollout.agent_client import AgentRefusal
from workers.rollout.closing import Closer
from workers.rollout.outcomes import Superseded, TryEnded

pytestmark = pytest.mark.integration


async def test_a_natural_end_is_one_row_one_object_and_one_count(world: World) -> None:
    group, (first, _) = await world.open_group(2)
    placed = await world.placed(first)
    closed = await world.close(placed)
    row = await world.row(t.rollout, first)
    assert closed == RolloutClosed(
        rollout_id=first,
        try_=1,
        hop=1,
        end=End.DONE,
        oldest_version=3,
        newest_version=4,
        tokens=16,
        sampled_tokens=8,
        turns=2,
    )
    assert (row.end, row.turns, row.tokens, row.sampled_tokens) == ("done", 2, 16, 8)
    assert (row.oldest_version, row.newest_version) == (3, 4)
    assert row.closed_at is not None
    grouped = await world.row(t.rollout_group, group)
    assert (grouped.open, grouped.closed_at) == (1, None)
    (tried,) = await world.rows(t.rollout_try)
    assert (tried.end, tried.counts) == ("done", False)


async def test_the_stored_trajectory_is_the_episode_and_has_the_recorded_sha(
    world: World,
) -> None:
    _, (first,) = await world.open_group(1)
    await world.close(await world.placed(first))
    row = await world.row(t.rollout, first)
    data = await world.blobs.read(row.trajectory_uri, row.trajectory_sha)
    stored = from_msgpack(data, Trajectory)
    episode, _ = finished_episode()
    assert stored.segments == episode.segments()
    assert stored.messages == episode.messages
    assert stored.task_id == "task-1"
    assert stored.artefacts == {"notes.txt": "x"}
    assert stored.metrics["calls"] == 1.0
    assert stored.metrics["drift"] == 0.0


async def test_the_last_member_closes_the_group(world: World) -> None:
    group, members = await world.open_group(3)
    for member in members:
        assert (await world.row(t.rollout_group, group)).closed_at is None
        await world.close(await world.placed(member))
    grouped = await world.row(t.rollout_group, group)
    assert grouped.open == 0
    assert grouped.closed_at is not None


async def test_members_that_close_at_once_are_counted_one_by_one(world: World) -> None:
    group, members = await world.open_group(16)
    places = [await world.placed(member) for member in members]
    await asyncio.gather(*(world.close(one) for one in places))
    grouped = await world.row(t.rollout_group, group)
    assert grouped.open == 0
    assert grouped.closed_at is not None


async def test_a_lower_hop_loses_and_counts_nothing(world: World) -> None:
    group, (first,) = await world.open_group(1)
    old = await world.placed(first, 1)
    await world.placed(first, 2)
    with pytest.raises(Superseded):
        await world.close(old)
    assert (await world.row(t.rollout, first)).closed_at is None
    assert (await world.row(t.rollout_group, group)).open == 1


async def test_an_older_try_loses(world: World) -> None:
    group, (first,) = await world.open_group(1)
    old = await world.placed(first, 1)
    await world.next_try(first)
    with pytest.raises(Superseded):
        await world.close(old)
    assert (await world.row(t.rollout_group, group)).open == 1


async def test_a_close_after_the_coordinators_loses_and_leaves_its_end(world: World) -> None:
    group, (first,) = await world.open_group(1)
    placed = await world.placed(first)
    await world.coordinator_closes(first)
    with pytest.raises(Superseded):
        await world.close(placed)
    row = await world.row(t.rollout, first)
    assert (row.end, row.trajectory_uri) == ("cancelled", None)
    assert (await world.row(t.rollout_group, group)).open == 0


async def test_a_close_whose_answer_was_lost_is_known_as_ones_own(world: World) -> None:
    class Forgetful(Database):
        """Commits the first transaction, then says that it does not know."""

        begun = 0

        @asynccontextmanager
        async def begin(self, fence: Fence | None = None) -> AsyncIterator[AsyncConnection]:
            async with super().begin(fence) as connection:
                yield connection
            self.begun += 1
            if self.begun == 1:
                raise StoreUnavailable("the connection broke at the commit")

    group, (first, _) = await world.open_group(2)
    placed = await world.placed(first)
    forgetful = Forgetful(world.database.url, 2)
    closed = await world.close(placed, world.closer(database=forgetful))
    await forgetful.close()
    assert forgetful.begun == 2
    assert closed.end is End.DONE
    assert (await world.row(t.rollout_group, group)).open == 1, "counted once"


async def test_the_close_waits_for_an_absent_database(world: World, clock: ManualClock) -> None:
    class Away(Database):
        """Cannot be reached until told."""

        is_away = True
        asked = 0

        @asynccontextmanager
        async def begin(self, fence: Fence | None = None) -> AsyncIterator[AsyncConnection]:
            self.asked += 1
            if self.is_away:
                raise StoreUnavailable("no route")
            async with super().begin(fence) as connection:
                yield connection

    _, (first,) = await world.open_group(1)
    placed = await world.placed(first)
    away = Away(world.database.url, 2)
    closing = asyncio.create_task(world.close(placed, world.closer(clock, away)))

    def passes() -> bool:
        clock.advance(0.5)
        return away.asked >= 3

    await eventually(passes)
    assert not closing.done()
    away.is_away = False

    def is_closed() -> bool:
        clock.advance(0.5)
        return closing.done()

    await eventually(is_closed)
    assert (await closing).end is End.DONE
    await away.close()


async def test_the_close_waits_for_an_absent_object_store(world: World, clock: ManualClock) -> None:
    class Full(Blobs):
        """Takes nothing for the first two times."""

        refusals = 2

        async def create(self, path: str, data: bytes) -> Blob:
            if self.refusals:
                self.refusals -= 1
                raise ObjectNotWritten("the disk is full")
            return await super().create(path, data)

    _, (first,) = await world.open_group(1)
    placed = await world.placed(first)
    full = Full((world.folder / "objects").as_uri())
    closer = Closer(world.database, world.fence, full, JOB, clock)
    closing = asyncio.create_task(world.close(placed, closer))

    def is_closed() -> bool:
        clock.advance(0.5)
        return closing.done()

    await eventually(is_closed)
    assert (await closing).end is End.DONE
    assert full.refusals == 0


async def test_a_host_of_an_old_epoch_closes_nothing(world: World) -> None:
    group, (first,) = await world.open_group(1)
    placed = await world.placed(first)
    await world.raise_epoch()
    with pytest.raises(FencedOut):
        await world.close(placed)
    assert (await world.row(t.rollout_group, group)).open == 1


async def test_other_tokens_at_the_path_of_this_placement_fail_the_try(world: World) -> None:
    _, (first,) = await world.open_group(1)
    placed = await world.placed(first)
    await world.blobs.create(trajectory_path(JOB, first, 1, 1), b"other")
    with pytest.raises(TryEnded, match="trajectory_exists"):
        await world.close(placed)
    assert (await world.row(t.rollout, first)).closed_at is None


async def test_an_agent_that_was_given_to_a_newer_hop_ends_the_close_in_silence(
    world: World,
) -> None:
    _, (first,) = await world.open_group(1)
    placed = await world.placed(first)
    episode, ending = finished_episode()
    with pytest.raises(Superseded):
        await world.closer().close(placed, episode, ending, AgentTwin(hop=2))
    gone = AgentTwin(refusal=AgentRefusal("sandbox_lost", "out of memory"))
    with pytest.raises(TryEnded, match="sandbox_lost"):
        await world.closer().close(placed, episode, ending, gone)


async def test_closes_and_a_drop_of_the_same_group_never_wait_for_each_other(
    world: World,
) -> None:
    group, members = await world.open_group(8)
    places = [await world.placed(member) for member in members]

    async def drop() -> None:
        async with world.database.begin() as connection:
            command = c.DropGroup(group, DropReason.CANCELLED)
            await coordination.drop_group(connection, command)

    await asyncio.gather(*(world.close(one) for one in places), drop())
    assert (await world.row(t.rollout_group, group)).open == 0
