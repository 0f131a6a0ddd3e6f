"""The real process, as a keeper spawns it, killed at every place of a step."""

import asyncio
import os
import subprocess
import sys
import time

import pytest
from sqlalchemy import func

from domain.events import CheckpointWritten, HostJoined, StepCommitted, TrainerReady
from domain.ids import HostId
from domain.states import HostKind
from domain.wire import Checkpoint, Wake
from infra.host_process import Birth, write_record
from infra.proofs import key_sha
from scheduler.hosts import Connected, Hosts
from stores import tables as t
from stores.system.leadership import Term
from tests.integration.workers.trainer.test_recovery import NEVER_ASKED, straight
from tests.integration.workers.trainer.world import JOB, TRAINER, World
from tests.support.failpoints import ArmedFailpoints
from tests.support.waiting import eventually
from workers.trainer import accumulate, publish

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIFE_S = 90.0
"""Lease of a spawned trainer: longer than the test."""


async def spawn(world: World, environ: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Claim the next epoch and start its process; the leader is away, so rows are all it has."""
    fence = await world.raise_epoch()
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.trainer.main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={
            **os.environ,
            **environ,
            "DATABASE_URL": world.database.url,
            "OBJECT_STORE_URL": (world.folder / "objects").as_uri(),
            "VENUS_HOME": str(world.folder / "home"),
        },
    )
    assert process.stdin is not None
    deadline = time.monotonic() + LIFE_S
    birth = Birth(TRAINER, fence.epoch, "trainer", b"key", world.attempt, JOB, deadline)
    write_record(process.stdin, birth)
    return process


async def end_of(process: "subprocess.Popen[bytes]") -> int | None:
    """Wait for the process's end; its exit status."""
    await eventually(lambda: process.poll() is not None, 30)
    assert process.stdin is not None
    process.stdin.close()
    return process.returncode


async def has_steps(world: World, count: int) -> bool:
    """Whether so many step rows exist."""
    return len(await world.rows(t.train_step)) == count


async def test_a_trainer_killed_at_every_place_of_a_step_derives_the_same_chain(
    world: World, armed: ArmedFailpoints
) -> None:
    world.spec = NEVER_ASKED
    await world.create()
    places = (accumulate.BACKWARD_MIDDLE, publish.WEIGHTS_WRITTEN, publish.STEP_COMMITTED)
    armed.arm(*(f"{place}=kill" for place in places))
    for step in (1, 2):
        await world.fill(step)
    for _ in places:
        assert await end_of(await spawn(world, armed.environ)) == -9
    survivor = await spawn(world, armed.environ)
    try:
        await eventually(lambda: has_steps(world, 3), 30)
    finally:
        survivor.kill()
        await end_of(survivor)
    assert sorted(f["name"] for f in armed.fired()) == sorted(places)
    assert await world.shas() == straight(2)
    assert {r.epoch for r in await world.rows(t.train_step)} <= {1, 2, 3, 4}


async def test_a_trainer_whose_keeper_is_gone_ends_at_once(world: World) -> None:
    await world.create()
    process = await spawn(world, {})
    assert process.stdin is not None
    process.stdin.close()
    assert await end_of(process) == 75


class Twin:
    """A leader's registry of hosts that records what the trainer tells."""

    def __init__(self) -> None:
        self.joined: list[HostJoined] = []
        self.told: list[object] = []
        self.hosts = Hosts(self._key_of, self.joined.append, self._on_frame)

    async def _key_of(self, host: HostId, epoch: int) -> bytes | None:
        return key_sha(b"key") if host == TRAINER else None

    def _on_frame(self, peer: Connected, frame: object) -> None:
        self.told.append(frame)

    async def hears(self, kind: type) -> object:
        """The first frame of this kind."""
        return await eventually(lambda: next((f for f in self.told if type(f) is kind), None), 30)


async def test_a_trainer_and_its_leader_speak_over_a_real_connection(world: World) -> None:
    world.spec = NEVER_ASKED
    await world.create()
    twin = Twin()
    address = await twin.hosts.open()
    twin.hosts.lead(Term(1, b"leader key"))
    beating = asyncio.create_task(twin.hosts.beat())
    async with world.database.begin() as connection:
        row = {"id": 1, "term": 1, "address": address, "key": b"leader key", "backend_pid": 0}
        await connection.execute(t.leadership.insert().values(heartbeat_at=func.now(), **row))
    process = await spawn(world, {})
    try:
        ready = await twin.hears(TrainerReady)
        assert isinstance(ready, TrainerReady)
        assert (ready.policy.version, ready.epoch) == (0, 1)
        assert [j.kind for j in twin.joined] == [HostKind.TRAINER]
        await world.fill(1)
        twin.hosts.send(TRAINER, 1, Wake(1))
        committed = await twin.hears(StepCommitted)
        assert isinstance(committed, StepCommitted)
        assert committed.policy.weights_sha == straight(1)[1]
        twin.hosts.send(TRAINER, 1, Checkpoint(1, "periodic", 40, (3,)))
        written = await twin.hears(CheckpointWritten)
        assert isinstance(written, CheckpointWritten)
        assert written.step == 1
    finally:
        process.kill()
        await end_of(process)
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await twin.hosts.close()
