"""The real process of a node agent: born by a keeper, heard by a leader, killed at every place."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import update

from domain.errors import VenusError
from domain.events import GroupGraded, HostJoined, SandboxReady, TryFailed
from domain.ids import HostId, RolloutId, group_id, rollout_id
from domain.sandbox import ForkMember, SandboxLimits
from domain.states import End
from domain.wire import Fork, Grade, HostSnapshot, Release, ReleaseAttempt, TakeTurn
from environments.package import pack
from infra.clock import SystemClock
from infra.host_process import Birth, write_record
from infra.proofs import key_sha
from scheduler.hosts import Connected, Hosts
from stores import tables as t
from stores.blobs import Blob, Blobs
from stores.system import leases
from stores.system.leadership import Leadership
from stores.unit_of_work import Database
from tests.integration.environments.helpers import CALC
from tests.support.failpoints import ArmedFailpoints
from tests.support.fleet import answer, call
from tests.support.requirements import requires
from tests.support.rows import ATTEMPT, NODE, Stored, insert_group, insert_job, spec_of
from tests.support.waiting import eventually
from venusrl.env.messages import Message
from venusrl.env.wire import message_to_json
from workers.fleet import seams
from workers.rollout.agent_client import AgentClient, AgentLost

pytestmark = [requires("bwrap"), pytest.mark.integration, pytest.mark.slow]

LIFE_S = 110.0
"""Lease of a spawned host: longer than the test."""

KEY = b"k" * 32
GROUP = group_id(ATTEMPT, 0)


def member(index: int = 0) -> RolloutId:
    return rollout_id(GROUP, index)


@dataclass
class Bench:
    """A leader's registry, the rows, and the node agents that a test spawned."""

    database: Database
    blobs: Blobs
    folder: Path
    package: Blob
    environ: dict[str, str] = field(default_factory=dict)
    joined: list[HostJoined] = field(default_factory=list)
    told: list[Any] = field(default_factory=list)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    epoch: int = 1

    def __post_init__(self) -> None:
        """The registry asks Postgres for host keys, as the real leader does."""
        self.hosts = Hosts(self._key_of, self.joined.append, self._on_frame)

    async def _key_of(self, host: HostId, epoch: int) -> bytes | None:
        async with self.database.begin() as connection:
            return await leases.key_of(connection, host, epoch)

    def _on_frame(self, peer: Connected, frame: object) -> None:
        self.told.append(frame)

    def spawn(self) -> "subprocess.Popen[bytes]":
        """What a keeper does after its claim."""
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.fleet.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={
                **os.environ,
                **self.environ,
                "DATABASE_URL": self.database.url,
                "OBJECT_STORE_URL": (self.folder / "objects").as_uri(),
                "VENUS_HOME": str(self.folder / "home"),
            },
        )
        assert process.stdin is not None
        deadline = time.monotonic() + LIFE_S
        write_record(process.stdin, Birth(NODE, self.epoch, "node", KEY, None, None, deadline))
        self.processes.append(process)
        return process

    async def snapshot(self, count: int = 1) -> HostSnapshot:
        """The newest of at least so many snapshots."""
        await eventually(lambda: len(self.joined) >= count, 30.0)
        return self.hosts.connected[NODE].snapshot

    def send(self, frame: object) -> None:
        """Send to the node agent."""
        assert self.hosts.send(NODE, self.epoch, frame)

    def fork(self, *indexes: int, try_: int = 1) -> None:
        """Ask for sandboxes."""
        self.send(
            Fork(
                attempt_id=ATTEMPT,
                group_id=GROUP,
                members=tuple(ForkMember(member(index), try_, 0, 7) for index in indexes),
                environment_version_id="ever_1",
                package_uri=self.package.uri,
                package_sha=self.package.sha,
                config_json="{}",
                task_json=json.dumps({"id": "train-0000", "prompt": "12+07", "answer": "19"}),
                limits=SandboxLimits(),
            )
        )

    async def ready(self, *indexes: int) -> AgentClient:
        """Fork, wait, and attach as a rollout host does."""
        snapshot = await self.snapshot()
        self.fork(*indexes)
        for index in indexes:
            await self.told_of(SandboxReady, member(index))
        client = AgentClient(
            snapshot.data_address,
            snapshot.data_key,
            host_id=HostId("host_engine0"),
            epoch=1,
            clock=SystemClock(),
        )
        for index in indexes:
            await client.attach(member(index), 1, 1)
        return client

    async def told_of(self, kind: type[Any], rollout: RolloutId) -> Any:
        """A fact about one rollout."""

        def found() -> list[Any]:
            return [f for f in self.told if isinstance(f, kind) and f.rollout_id == rollout]

        return (await eventually(found, 30.0))[0]

    def children(self) -> list[psutil.Process]:
        """Everything alive that the newest node agent started, and what that started."""
        node = psutil.Process(self.processes[-1].pid)
        found: list[psutil.Process] = node.children(recursive=True)
        return found

    def held(self) -> list[psutil.Process]:
        """The same without the zygote and what waits for it: they stay warm for the next fork."""
        found = []
        for process in self.children():
            with suppress(psutil.NoSuchProcess):
                is_below = any("sandboxes.guest.zygote" in word for word in process.cmdline())
                below = process.children() if is_below and process.name() != "venus-zygote" else []
                is_waiting = any(one.name() == "venus-zygote" for one in below)
                if process.name() != "venus-zygote" and not is_waiting:
                    found.append(process)
        return found


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a dead one that nobody has collected yet does not."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def intent(message: Message, turn: int = 0) -> TakeTurn:
    return TakeTurn(
        request=0,
        rollout_id=member(),
        try_=1,
        hop=1,
        turn=turn,
        token_ids=(1, 2),
        logprobs=(-0.5, -0.5),
        versions=(0, 0),
        finish="stop",
        assistant=dict(message_to_json(message)),
    )


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    database = Database(database_url)
    blobs = Blobs((tmp_path / "objects").as_uri())
    package = await blobs.create("package.tar.gz", pack(CALC))
    listed = await blobs.create("tasks", b'{"id": "train-0000", "prompt": "12+07", "answer": "19"}')
    tasks = {"train": {"uri": listed.uri, "sha": listed.sha, "count": 1}}
    await insert_job(database, spec_of(), package=(package.uri, package.sha), tasks=tasks)
    async with database.begin() as connection:
        await connection.execute(update(t.host_lease).values(key_sha=key_sha(KEY)))
    made = Bench(database, blobs, tmp_path, package)
    leadership = Leadership(database_url, 60.0)
    term = await leadership.try_acquire(await made.hosts.open())
    assert term is not None
    made.hosts.lead(term)
    beating = asyncio.create_task(made.hosts.beat())
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()
    beating.cancel()
    with suppress(asyncio.CancelledError, VenusError):
        await beating
    await made.hosts.close()
    await leadership.close()
    await database.close()


async def test_a_node_serves_a_rollout_from_fork_to_grade(bench: Bench) -> None:
    bench.spawn()
    client = await bench.ready(0, 1)
    first = await client.take_turn(intent(call("12+07")))
    assert first.messages[0]["content"] == "19"
    assert (await client.take_turn(intent(answer("19"), 1))).done
    sealed = await client.seal(member(), 1, 1)
    assert "calls.jsonl" in sealed.artefacts
    group = await insert_group(bench.database, [Stored(End.ENV_FAILED)] * 2, ordinal=5)
    bench.send(Grade(group, 1))
    graded = await eventually(lambda: [f for f in bench.told if isinstance(f, GroupGraded)], 30.0)
    assert graded[0].usable == 0
    await client.close()


@pytest.mark.parametrize("how", ["SIGKILL", "keeper"])
async def test_nothing_outlives_the_process(bench: Bench, how: str) -> None:
    process = bench.spawn()
    client = await bench.ready(0, 1)
    children = bench.children()
    assert len(children) >= 6  # two sandboxes and the environment, each with its supervisor
    if how == "SIGKILL":
        process.send_signal(signal.SIGKILL)
    else:
        assert process.stdin is not None
        process.stdin.close()
    await eventually(lambda: not alive(children), 10.0, str(children))
    with pytest.raises(AgentLost):
        await client.attach(member(), 1, 2)
    await client.close()


async def test_a_node_that_dials_again_tells_what_it_holds_and_what_failed(bench: Bench) -> None:
    bench.spawn()
    client = await bench.ready(0, 1)
    _kill_one_sandbox(bench)
    failed = await eventually(lambda: [f for f in bench.told if isinstance(f, TryFailed)], 10.0)
    assert failed[0].end is End.SANDBOX_LOST
    bench.told.clear()
    await bench.hosts.connected[NODE].channel.close()
    snapshot = await bench.snapshot(2)
    assert len(snapshot.sandboxes) == 1
    again = await eventually(lambda: [f for f in bench.told if isinstance(f, TryFailed)], 10.0)
    assert again[0].rollout_id == failed[0].rollout_id
    assert f"{failed[0].rollout_id}/1" not in snapshot.sandboxes
    await client.close()


def _kill_one_sandbox(bench: Bench) -> None:
    mine = [one for one in bench.children() if one.name().endswith("-000-t1")]
    mine = [one for one in mine if one.parent().name() == "venus-zygote"]
    assert len(mine) == 1
    mine[0].kill()


async def test_releases_bring_the_count_to_zero(bench: Bench) -> None:
    bench.spawn()
    client = await bench.ready(0, 1)
    bench.send(Release(member(0), 1))
    bench.send(ReleaseAttempt(ATTEMPT))
    await eventually(lambda: bench.held() == [], 10.0)
    await client.close()


async def test_the_reaper_ends_what_a_lost_release_left(bench: Bench) -> None:
    await insert_group(bench.database, [Stored(End.DONE)] * 2)
    bench.spawn()
    client = await bench.ready(0, 1)
    async with bench.database.begin() as connection:
        await connection.execute(update(t.attempt).values(ended_at=t.attempt.c.created_at))
    await eventually(lambda: bench.held() == [], 20.0)
    await client.close()


@pytest.mark.parametrize("place", [seams.SANDBOX_CREATED, seams.INTENT_JOURNALLED, seams.REPLIED])
async def test_a_death_at_each_place_leaves_nothing_and_the_next_epoch_serves(
    bench: Bench, armed: ArmedFailpoints, place: str
) -> None:
    bench.environ |= armed.environ
    armed.arm(f"{place}=kill")
    process = bench.spawn()
    children: list[psutil.Process] = []
    if place == seams.SANDBOX_CREATED:
        await bench.snapshot()
        bench.fork(0)
    else:
        client = await bench.ready(0)
        children = bench.children()
        with pytest.raises(AgentLost):
            await client.take_turn(intent(call("12+07")))
        await client.close()
    await eventually(lambda: process.poll() is not None, 20.0)
    assert armed.fired(place)
    await eventually(lambda: not alive(children), 10.0)
    async with bench.database.begin() as connection:
        await connection.execute(update(t.host_lease).values(epoch=2))
    bench.epoch, bench.told = 2, []
    bench.spawn()
    snapshot = await bench.snapshot(2)
    assert snapshot.sandboxes == ()
    bench.fork(0, try_=2)
    ready = await bench.told_of(SandboxReady, member())
    assert (ready.try_, ready.node_epoch) == (2, 2)
