"""The real process of an engine host: born by a keeper, killed at every place of a rollout."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from domain.events import EngineSynced, EngineSyncFailed, RolloutClosed
from domain.ids import RolloutId
from domain.trajectory import Trajectory
from infra.codec import from_msgpack
from infra.host_process import Birth, write_record
from stores import tables as t
from tests.integration.workers.rollout.leader import (
    Leader,
    joined,
    neighbours,
    publish,
    warm_start,
    workdir,
)
from tests.integration.workers.rollout.world import ENGINE, JOB, KEY, World
from tests.support.failpoints import ArmedFailpoints
from tests.support.waiting import eventually
from tests.unit.workers.rollout.builders import ATTEMPT
from workers.rollout import seams

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIFE_S = 110.0
"""Lease of a spawned host: longer than the test."""


@dataclass
class Bench:
    """A leader, a node agent and the host processes that a test spawned."""

    world: World
    leader: Leader
    environ: dict[str, str] = field(default_factory=dict)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def spawn(self) -> "subprocess.Popen[bytes]":
        """What a keeper does after its claim."""
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.rollout.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={
                **os.environ,
                **self.environ,
                "DATABASE_URL": self.world.database.url,
                "OBJECT_STORE_URL": (self.world.folder / "objects").as_uri(),
                "VENUS_HOME": str(workdir(self.world)),
                "OMP_NUM_THREADS": "1",
            },
        )
        assert process.stdin is not None
        deadline = time.monotonic() + LIFE_S
        birth = Birth(ENGINE, self.leader.epoch, "engine", KEY, ATTEMPT, JOB, deadline)
        write_record(process.stdin, birth)
        self.processes.append(process)
        return process

    async def respawn(self) -> None:
        """The host died: the leader raises the epoch, the next keeper spawns anew."""
        await self.world.raise_epoch()
        self.leader.epoch += 1
        self.spawn()

    async def trajectory(self, rollout: RolloutId) -> Trajectory:
        """The stored trajectory, checked against its row."""
        row = await self.world.row(t.rollout, rollout)
        data = await self.world.blobs.read(row.trajectory_uri, row.trajectory_sha)
        return from_msgpack(data, Trajectory)


@pytest.fixture
async def bench(world: World) -> AsyncIterator[Bench]:
    async with neighbours(world) as leader:
        one = Bench(world, leader)
        try:
            yield one
        finally:
            for process in one.processes:
                process.kill()
                process.communicate()


def sampled_ids(trajectory: Trajectory) -> list[tuple[int, ...]]:
    """Sampled ids of each turn."""
    ids = trajectory.segments[0].token_ids
    return [ids[span.start : span.sampled_end] for span in trajectory.turns]


async def test_a_host_takes_a_policy_and_closes_a_group_while_a_sync_lands(bench: Bench) -> None:
    leader = bench.leader
    bench.spawn()
    assert (await joined(leader, 1)).policy_version == -1
    await leader.sync(await publish(bench.world, 0, warm_start()))
    await eventually(lambda: leader.heard(EngineSynced), 30.0)
    _, members = await bench.world.open_group(8)
    for member in members:
        await leader.place(member)
    await leader.sync(await publish(bench.world, 1, warm_start(0.01)))
    await eventually(lambda: len(leader.heard(RolloutClosed)) == 8, 30.0)
    await eventually(lambda: len(leader.heard(EngineSynced)) == 2, 30.0)
    assert not leader.heard(EngineSyncFailed)
    for member in members:
        trajectory = await bench.trajectory(member)
        journal = leader.agent.journal(member)
        assert sampled_ids(trajectory)[: len(journal.turns)] == [
            turn.token_ids for turn in journal.turns
        ]
        segment = trajectory.segments[0]
        pairs = zip(segment.versions, segment.mask, strict=True)
        assert all((version in (0, 1)) == bool(mask) for version, mask in pairs)
        assert trajectory.metrics["drift"] == 0.0


async def test_a_host_leaves_the_choice_of_its_first_policy_to_the_leader(bench: Bench) -> None:
    bench.spawn()
    first = await joined(bench.leader, 1)
    assert (first.policy_version, first.held) == (-1, ())
    older = await publish(bench.world, 2, warm_start())
    await bench.leader.sync(older)
    await eventually(lambda: bench.leader.heard(EngineSynced), 30.0)
    assert bench.leader.heard(EngineSynced)[0].version == 2


@pytest.mark.parametrize(
    "place",
    [
        seams.ATTACHED,
        seams.GENERATED,
        seams.TAKEN,
        seams.BEFORE_UPLOAD,
        seams.UPLOADED,
        seams.CLOSED,
    ],
)
async def test_a_rollout_whose_host_dies_anywhere_closes_once_with_the_journals_tokens(
    place: str, bench: Bench, armed: ArmedFailpoints
) -> None:
    leader, world = bench.leader, bench.world
    bench.environ = armed.environ
    bench.spawn()
    await joined(leader, 1)
    policy = await publish(world, 0, warm_start())
    await leader.sync(policy)
    await eventually(lambda: leader.heard(EngineSynced), 30.0)
    armed.arm(f"{place}=kill")
    group, (member,) = await world.open_group(1)
    await leader.place(member)
    await eventually(lambda: bench.processes[0].poll() is not None, 30.0)
    assert len(armed.fired(place)) == 1
    journalled = [turn.token_ids for turn in leader.agent.journal(member).turns]
    if place == seams.CLOSED:
        assert not leader.heard(RolloutClosed)
    else:
        await bench.respawn()
        await joined(leader, 2)
        await leader.sync(policy)
        await eventually(lambda: len(leader.heard(EngineSynced)) == 2, 30.0)
        await leader.place(member, hop=2)
        await eventually(lambda: leader.heard(RolloutClosed), 30.0)
    grouped = await world.row(t.rollout_group, group)
    assert (grouped.open, grouped.closed_at is not None) == (0, True)
    journal = leader.agent.journal(member)
    tokens = [turn.token_ids for turn in journal.turns]
    assert tokens[: len(journalled)] == journalled
    assert sampled_ids(await bench.trajectory(member))[: len(tokens)] == tokens
    assert journal.replies_run == len(tokens), "each reply ran once"


async def test_a_sync_that_dies_at_its_second_chunk_leaves_the_version_and_the_next_works(
    bench: Bench, armed: ArmedFailpoints
) -> None:
    leader = bench.leader
    bench.environ = armed.environ
    bench.spawn()
    await joined(leader, 1)
    policy = await publish(bench.world, 0, warm_start())
    armed.arm(f"{seams.SYNC_CHUNK}=raise:os,count=2")
    await leader.sync(policy)
    await eventually(lambda: leader.heard(EngineSyncFailed), 30.0)
    assert not leader.heard(EngineSynced)
    await leader.sync(policy)
    await eventually(lambda: leader.heard(EngineSynced), 30.0)
    assert bench.processes[0].poll() is None


async def test_a_host_whose_keeper_is_gone_ends_at_once(bench: Bench) -> None:
    process = bench.spawn()
    await joined(bench.leader, 1)
    assert process.stdin is not None
    process.stdin.close()
    await eventually(lambda: process.poll() is not None, 10.0)
    assert process.returncode == 75
