"""The processes of two engine hosts, one of which is killed in the middle of a move."""

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from domain.events import EngineSynced
from domain.ids import HostId, RolloutId
from domain.states import End
from domain.wire import Sync
from infra.host_process import Birth, write_record
from tests.integration.workers.rollout.leader import neighbours, publish, warm_start, workdir
from tests.integration.workers.rollout.two_hosts import ANSWERS, OTHER, TwoHosts, no_hosts
from tests.integration.workers.rollout.world import ENGINE, JOB, KEY, World
from tests.support.failpoints import ArmedFailpoints
from tests.support.waiting import eventually
from tests.unit.workers.rollout.builders import ATTEMPT, reply, user
from workers.models.folder import builtin_path, read_folder
from workers.rollout import seams

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIFE_S = 110.0
"""Lease of a spawned host: longer than the test."""

VOCABULARY = read_folder(builtin_path("tiny-calc")).vocabulary
WHOLE = "^12+07+30=c12+07;r19;c19+30;r49;c49+01;r50;a50;"


@dataclass
class Processes:
    """Both hosts as their keepers would have spawned them."""

    pair: TwoHosts
    armed: ArmedFailpoints
    script: Path | None
    """None: the hosts run the model."""
    running: dict[HostId, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def spawn(self, host: HostId) -> None:
        """What a keeper does after its claim."""
        world, played = self.pair.world, dict[str, str]()
        if self.script is not None:
            played = {seams.ENGINE_VARIABLE: "scripted", seams.SCRIPT_VARIABLE: str(self.script)}
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.rollout.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={
                **os.environ,
                **self.armed.environ,
                **played,
                "DATABASE_URL": world.database.url,
                "OBJECT_STORE_URL": (world.folder / "objects").as_uri(),
                "VENUS_HOME": str(workdir(world)),
                "OMP_NUM_THREADS": "1",
            },
        )
        assert process.stdin is not None
        deadline = time.monotonic() + LIFE_S
        write_record(process.stdin, Birth(host, 1, "engine", KEY, ATTEMPT, JOB, deadline))
        self.running[host] = process

    async def start(self) -> None:
        """Both serve one policy."""
        pair = self.pair
        for host in (ENGINE, OTHER):
            self.spawn(host)
        await pair.joined()
        policy = await publish(pair.world, 0, warm_start())
        for host in (ENGINE, OTHER):
            pair.leader.hosts.send(host, 1, Sync(policy))
        await eventually(lambda: len(pair.leader.heard(EngineSynced)) == 2, 30.0)

    async def in_gap(self) -> RolloutId:
        """A rollout is in the tool gap of its second turn on the first host."""
        await self.start()
        _, (rollout,) = await self.pair.world.open_group(1)
        self.pair.node.journal(rollout).hold(1)
        await self.pair.place(rollout, ENGINE)
        await self.pair.in_gap(1)
        return rollout

    async def in_talk(self) -> RolloutId:
        """A rollout of the real model waits for its user after the first answer."""
        await self.start()
        _, (rollout,) = await self.pair.world.open_group(1)
        journal = self.pair.node.journal(rollout)
        # With the first answer it is longer than a page, which is what travels.
        journal.opening = (user("12+07+30+11+08"),)
        journal.answer = lambda turn: reply(turn.turn, user("5+6"), done=turn.turn > 0)
        journal.hold(0)
        await self.pair.place(rollout, ENGINE)
        await self.pair.in_gap(0)
        return rollout

    async def dies(self, host: HostId) -> None:
        """The failpoint has killed this process; its connection is over."""
        await eventually(lambda: self.running[host].poll() is not None, 30.0)
        await eventually(lambda: host not in self.pair.leader.hosts.connected, 30.0)

    def shared_memory(self) -> list[str]:
        """Names in the folder of shared memory that speak of a rollout."""
        return [one for one in os.listdir("/dev/shm") if one.startswith("kv-")]


@pytest.fixture
async def processes(
    world: World, armed: ArmedFailpoints, tmp_path: Path
) -> AsyncIterator[Processes]:
    script = tmp_path / "script.json"
    answers = [{"token_ids": list(VOCABULARY.encode(answer))} for answer in ANSWERS]
    script.write_text(json.dumps({"default": answers, "by_turn": True, "kv_tokens": 1000}))
    async with neighbours(world) as leader, no_hosts(world, leader) as pair:
        one = Processes(pair, armed, script)
        try:
            yield one
        finally:
            for process in one.running.values():
                process.kill()
                process.communicate()


async def ended_whole(one: Processes, rollout: RolloutId, hop: int) -> None:
    """Every token of every turn once, every reply run once, nothing left in shared memory."""
    pair = one.pair
    journal = pair.node.journal(rollout)
    await eventually(lambda: hop in journal.attached, 30.0)
    journal.held[1].set()
    closed = await pair.closed()
    assert (closed.end, closed.hop, closed.turns) == (End.DONE, hop, len(ANSWERS))
    (segment,) = (await pair.trajectory(rollout)).segments
    assert VOCABULARY.decode(segment.token_ids) == WHOLE
    tokens = [VOCABULARY.decode(turn.token_ids) for turn in journal.turns]
    assert (tokens, journal.replies_run) == (list(ANSWERS), len(ANSWERS))
    assert one.shared_memory() == []


def figure(one: Processes, host: HostId, name: str) -> float:
    """What a host said of itself with its last heartbeat."""
    peer = one.pair.leader.hosts.connected.get(host)
    return 0.0 if peer is None else peer.figures.get(name, 0.0)


async def test_pages_go_from_process_to_process(processes: Processes) -> None:
    one, pair = processes, processes.pair
    rollout = await one.in_gap()
    snapshot = pair.leader.hosts.connected[ENGINE].snapshot
    assert (snapshot.kv_tokens, snapshot.may_migrate) == (1000, True)
    await pair.move(rollout, OTHER)
    await ended_whole(one, rollout, hop=2)
    await eventually(lambda: figure(one, OTHER, "kv_imports") == 1.0)
    await eventually(lambda: figure(one, ENGINE, "kv_exports") == 1.0)
    await eventually(lambda: figure(one, ENGINE, "kv_export_bytes") == 0.0)


async def test_a_source_killed_with_its_copy_made_costs_a_prefill(processes: Processes) -> None:
    one, pair = processes, processes.pair
    rollout = await one.in_gap()
    one.armed.arm(f"{seams.EXPORTED}=kill")
    await pair.move(rollout, OTHER)
    await one.dies(ENGINE)
    await ended_whole(one, rollout, hop=2)
    await eventually(lambda: figure(one, OTHER, "held") == 0.0)
    assert figure(one, OTHER, "kv_imports") == 0.0


async def test_a_target_killed_with_the_pages_in_its_hands_costs_a_prefill(
    processes: Processes,
) -> None:
    one, pair = processes, processes.pair
    rollout = await one.in_gap()
    one.armed.arm(f"{seams.FETCHED}=kill")
    await pair.move(rollout, OTHER)
    await one.dies(OTHER)
    await pair.place(rollout, ENGINE)
    await ended_whole(one, rollout, hop=3)


async def test_a_real_models_rollout_goes_on_with_its_pages(processes: Processes) -> None:
    one, pair = processes, processes.pair
    one.script = None
    rollout = await one.in_talk()
    journal = pair.node.journal(rollout)
    before = [turn.token_ids for turn in journal.turns]
    await pair.move(rollout, OTHER)
    await eventually(lambda: 2 in journal.attached, 30.0)
    journal.held[0].set()
    closed = await pair.closed()
    assert (closed.end, closed.hop) == (End.DONE, 2)
    tokens = [turn.token_ids for turn in journal.turns]
    assert tokens[: len(before)] == before
    trajectory = await pair.trajectory(rollout)
    (segment,) = trajectory.segments
    spans = [segment.token_ids[span.start : span.sampled_end] for span in trajectory.turns]
    assert spans[: len(tokens)] == tokens
    assert journal.replies_run == len(tokens), "each reply ran once"
    await eventually(lambda: figure(one, OTHER, "kv_imports") == 1.0)
    assert figure(one, OTHER, "cached_tokens") >= figure(one, OTHER, "kv_imported_tokens") > 0.0
