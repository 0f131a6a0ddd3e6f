"""Sandboxes of tenants on a node: rows and sandboxes follow each other, whatever fails between them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import func, insert, select, update

from domain.errors import StoreUnavailable
from domain.ids import HostId
from domain.sandbox import SandboxPurpose
from domain.states import HostKind
from domain.tenant_sandboxes import SandboxState
from infra.clock import ManualClock
from infra.door_frames import DoorDone, DoorLook, DoorReason
from infra.settings import Settings
from infra.vault import Vault, make_key_file, variables_context
from sandboxes.client import CallRefused
from sandboxes.core.names import GIB, MIB
from sandboxes.node.account import make_account
from sandboxes.node.relief import Relief
from sandboxes.node.slots import Slots
from sandboxes.ports import EventKind, ForkFailed, Listener, Sandbox, SandboxEvent, SandboxSpec
from stores import sandboxes as wanted
from stores import tables as t
from stores.environments import Owner
from stores.system import leases
from stores.system import tenant_sandboxes as store
from stores.unit_of_work import AsyncConnection, Database, HostFence
from tests.support import requires
from tests.unit.sandboxes.node.made import ElasticRuntime, ask
from venusrl.env.sandbox import SandboxError
from workers.fleet.tenants import starts
from workers.fleet.tenants.calls import TenantCalls
from workers.fleet.tenants.keeper import TenantSandboxes
from workers.fleet.tenants.starts import Starter, most_of

pytestmark = requires("postgres")

NODE, OTHER = HostId("host_node0"), HostId("host_node1")
OWNER = Owner("org", "prj")
Keeper = "psycopg.Connection[tuple[object, ...]]"


@dataclass
class Machines(ElasticRuntime):
    """A scripted runtime that starts what is asked for, unless a test says why not."""

    fails: str = ""
    sulks: str = ""
    """Why nothing can be paused."""
    listeners: list[Listener] = field(default_factory=list)
    specs: list[SandboxSpec] = field(default_factory=list)

    def listen(self, listener: Listener) -> None:
        """Told of what `lose` says."""
        self.listeners.append(listener)

    async def fork(self, members: Sequence[SandboxSpec]) -> tuple[Sandbox, ...]:
        """All of them, or none."""
        if self.fails:
            raise ForkFailed(self.fails)
        self.specs += members
        made: list[Any] = [self.hold(spec.key, 10) for spec in members]
        return tuple(made)

    async def pause(self, key: Any) -> None:
        """Unless it sulks."""
        if self.sulks:
            raise SandboxError("refused", self.sulks)
        await super().pause(key)

    def end(self, key: Any, kind: EventKind, cause: str) -> None:
        """One ends by itself."""
        del self.live[key]
        for listener in self.listeners:
            listener(SandboxEvent(key, kind, cause))


class Store(Database):
    """Postgres, away while a test says so."""

    is_away = False

    @asynccontextmanager
    async def begin(self, fence: Any = None) -> AsyncIterator[AsyncConnection]:
        """As ever, or not at all."""
        if self.is_away:
            raise StoreUnavailable("away")
        async with super().begin(fence) as connection:
            yield connection


@dataclass
class Node:
    """One node's part for tenants."""

    database: Store
    runtime: Machines
    sandboxes: TenantSandboxes
    slots: Slots
    clock: ManualClock

    async def settled(self, sandbox_id: str = "") -> None:
        """Until what it began is over and written down."""
        await self.sandboxes.settle(sandbox_id)


def node_of(
    database: Store, home: Path, host: HostId = NODE, sandboxes: int = 9, memory: int = 64 * GIB
) -> Node:
    """A node that holds its lease with epoch 1."""
    clock, runtime = ManualClock(), Machines()
    account = make_account(memory, 8.0, 1, owns_all=True)
    slots = Slots(sandboxes, 1, account)
    kept = TenantSandboxes(
        database=database,
        fence=HostFence(host, 1),
        runtime=runtime,
        relief=Relief(account, None, lambda key, cause: None),
        starter=Starter(runtime, slots, most_of(slots)),
        clock=clock,
        settings=replace(Settings.from_env({}), home=home),
    )
    return Node(database, runtime, kept, slots, clock)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Store]:
    """A tenant, and two nodes that hold their leases."""
    database = Store(database_url, 2)
    async with database.begin() as connection:
        await connection.execute(insert(t.organization).values(id="org", name="o"))
        await connection.execute(
            insert(t.project).values(id="prj", organization_id="org", name="p")
        )
        for host in (NODE, OTHER):
            lease = {"id": host, "kind": HostKind.NODE.value, "desired": "up", "owner": "k"}
            await connection.execute(insert(t.host_lease).values(**lease))
    yield database
    await database.close()


@pytest.fixture
async def node(database: Store, tmp_path: Path) -> Node:
    """A roomy one."""
    return node_of(database, tmp_path)


async def asked(database: Store, n: int = 1, group: str = "g", **values: Any) -> list[str]:
    """A fork that a tenant asks for; ids of its members."""
    ids = [f"sbx_{group}{index}" for index in range(n)]
    async with database.begin() as connection:
        row = {"group_id": group, "template": "default", "lifetime_s": 60.0, **values}
        await wanted.create(connection, OWNER, ids, row)
    return ids


async def rows(database: Store) -> dict[str, Any]:
    """Rows by id."""
    async with database.begin() as connection:
        return {row.id: row for row in await connection.execute(select(t.sandbox))}


async def wants(database: Store, sandbox_id: str, desired: SandboxState) -> None:
    """What the owner says."""
    async with database.begin() as connection:
        assert await wanted.want(connection, "prj", sandbox_id, desired) is not None


async def test_a_fork_starts_whole_and_holds_room_until_its_end(node: Node) -> None:
    ids = await asked(node.database, 3)
    await node.settled()
    found = await rows(node.database)
    assert {row.state for row in found.values()} == {"running"}
    assert len(node.runtime.live) == node.slots.taken(SandboxPurpose.AGENT) == 3
    assert len({spec.seed for spec in node.runtime.specs}) == 3
    for id in ids:
        await wants(node.database, id, SandboxState.ENDED)
    await node.settled()
    found = await rows(node.database)
    assert {(row.state, row.cause) for row in found.values()} == {("ended", "killed")}
    assert (node.runtime.live, node.slots.taken(SandboxPurpose.AGENT)) == ({}, 0)
    assert node.sandboxes.starter.taken == 0
    assert node.sandboxes.relief.account.members() == ()


async def test_two_nodes_never_share_a_fork(database: Store, tmp_path: Path) -> None:
    nodes = [node_of(database, tmp_path, host) for host in (NODE, OTHER)]
    for number in range(4):
        await asked(database, 2, f"g{number}")
    for _ in range(4):
        await asyncio.gather(*(node.settled() for node in nodes))
    hosts: dict[str, set[str]] = {}
    for row in (await rows(database)).values():
        assert row.state == "running"
        hosts.setdefault(row.group_id, set()).add(row.host_id)
    assert all(len(found) == 1 for found in hosts.values())
    assert sum(len(node.runtime.live) for node in nodes) == 8


async def test_what_finds_no_room_goes_back_with_what_it_waits_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "ROOM_WAIT_S", 0.01)
    await node.slots.take(SandboxPurpose.AGENT, 8)
    (id,) = await asked(node.database)
    await node.settled()
    row = (await rows(node.database))[id]
    assert (row.state, row.host_id) == ("requested", None)
    assert "8 agents and 0 graders of 9" in row.detail
    node.slots.give(SandboxPurpose.AGENT, 8)
    await node.settled()
    assert (await rows(node.database))[id].state == "requested", "others may have room meanwhile"
    node.clock.advance(60.0)
    await node.settled()
    assert (await rows(node.database))[id].state == "running"


async def test_jobs_keep_half_of_a_node(node: Node) -> None:
    ids = await asked(node.database, 4, "g") + await asked(node.database, 1, "h")
    await node.settled()
    await node.settled()
    found = await rows(node.database)
    assert [found[id].state for id in ids] == ["running"] * 4 + ["requested"]
    assert "4 of a node's 4 sandboxes for tenants are taken" in found[ids[4]].detail
    await node.slots.take(SandboxPurpose.AGENT, 4)


async def test_a_fork_that_no_node_ever_takes_ends_at_once(node: Node) -> None:
    ids = await asked(node.database, 5)
    await node.settled()
    found = await rows(node.database)
    assert {found[id].cause for id in ids} == {"never_fits"}


async def test_memory_admits_a_fork_and_not_the_count_alone(
    database: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "ROOM_WAIT_S", 0.01)
    node = node_of(database, tmp_path, sandboxes=200, memory=4 * GIB)
    filled = ask(1, "jobs", ceiling=GIB)
    await node.slots.take(SandboxPurpose.AGENT, 1, filled)
    use = node.sandboxes.relief.account
    use.measure(filled.members[0], node.runtime.hold(filled.members[0], 3600).stats())
    (id,) = await asked(database)
    await node.settled()
    row = (await rows(database))[id]
    assert row.state == "requested"
    assert "memory" in row.detail
    assert "MiB" in row.detail


async def test_a_fork_that_cannot_start_ends_with_the_reason(node: Node) -> None:
    node.runtime.fails = "no such image"
    ids = await asked(node.database, 2)
    await node.settled()
    found = await rows(node.database)
    assert {(found[id].cause, found[id].detail) for id in ids} == {
        ("start_failed", "no such image")
    }
    assert node.slots.taken(SandboxPurpose.AGENT) == 0


async def test_variables_are_opened_at_the_start_and_leave_the_row(
    node: Node, tmp_path: Path
) -> None:
    make_key_file(tmp_path)
    vault = Vault.of(node.sandboxes.settings)
    sealed = vault.seal('{"A": "secret"}', variables_context("prj", "g"))
    (id,) = await asked(node.database, env_sealed=sealed, env_names=["A"])
    await node.settled()
    assert node.sandboxes.held[id].env == {"A": "secret"}
    assert (await rows(node.database))[id].env_sealed is None


async def test_variables_of_another_fork_open_nowhere(node: Node, tmp_path: Path) -> None:
    make_key_file(tmp_path)
    vault = Vault.of(node.sandboxes.settings)
    sealed = vault.seal('{"A": "secret"}', variables_context("prj", "another"))
    (id,) = await asked(node.database, env_sealed=sealed, env_names=["A"])
    await node.settled()
    row = (await rows(node.database))[id]
    assert (row.cause, row.env_sealed) == ("start_failed", None)


async def test_a_pause_stops_the_lifetime_and_a_resume_goes_on_with_it(node: Node) -> None:
    (id,) = await asked(node.database)
    await node.settled()
    await wants(node.database, id, SandboxState.PAUSED)
    await node.settled(id)
    row = (await rows(node.database))[id]
    assert row.state == "paused"
    assert 0 < row.left_s <= 60
    assert [name for name, _ in node.runtime.asked] == ["pause", "reclaim"]
    await wants(node.database, id, SandboxState.RUNNING)
    await node.settled(id)
    row = (await rows(node.database))[id]
    assert (row.state, row.left_s) == ("running", None)


async def test_what_cannot_be_paused_runs_on_and_its_owner_hears_why(node: Node) -> None:
    node.runtime.sulks = "a process cannot be stopped"
    (id,) = await asked(node.database)
    await node.settled()
    await wants(node.database, id, SandboxState.PAUSED)
    with pytest.raises(CallRefused) as refused:
        await TenantCalls(node.sandboxes).answer(DoorLook(0, id))
    assert refused.value.reason is DoorReason.NOT_PAUSED
    row = (await rows(node.database))[id]
    assert (row.state, row.desired) == ("running", "running")
    assert await TenantCalls(node.sandboxes).answer(DoorLook(7, id)) == DoorDone(7)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (EventKind.OOM, "out_of_memory"),
        (EventKind.EXITED, "exited"),
        (EventKind.LOST, "lost"),
    ],
)
async def test_one_that_ends_by_itself_says_how(node: Node, kind: EventKind, cause: str) -> None:
    (id,) = await asked(node.database)
    await node.settled()
    node.runtime.end(node.sandboxes.held[id].member, kind, "in words")
    await node.settled()
    row = (await rows(node.database))[id]
    assert (row.state, row.cause, row.detail) == ("ended", cause, "in words")
    assert node.slots.taken(SandboxPurpose.AGENT) == 0


async def test_one_that_the_node_takes_away_says_so(node: Node) -> None:
    (id,) = await asked(node.database)
    await node.settled()
    assert node.sandboxes.lose(node.sandboxes.held[id].member, "memory_pressure: full")
    assert not node.sandboxes.lose(ask().members[0], "memory_pressure: full"), "a job's"
    await node.settled()
    assert (await rows(node.database))[id].cause == "memory_pressure"


async def test_a_lifetime_ends_by_the_clock_while_postgres_is_away(node: Node) -> None:
    (id,) = await asked(node.database)
    await node.settled()
    await node.settled()
    node.database.is_away = True
    node.clock.advance(30.0)
    await node.settled()
    assert node.runtime.live
    node.clock.advance(31.0)
    await node.settled()
    await node.settled()
    assert not node.runtime.live
    node.database.is_away = False
    await node.settled()
    assert (await rows(node.database))[id].cause == "timed_out"


async def test_what_has_no_row_is_destroyed(node: Node) -> None:
    (id,) = await asked(node.database)
    await node.settled()
    async with node.database.begin() as connection:
        gone = {"state": "ended", "cause": "killed", "ended_at": func.now()}
        await connection.execute(update(t.sandbox).where(t.sandbox.c.id == id).values(**gone))
    await node.settled()
    await node.settled()
    assert not node.runtime.live
    assert node.slots.taken(SandboxPurpose.AGENT) == 0


async def test_what_only_a_row_knows_ends_as_lost(node: Node) -> None:
    (id,) = await asked(node.database)
    async with node.database.begin() as connection:
        held = {"host_id": NODE, "epoch": 1, "state": "running"}
        await connection.execute(update(t.sandbox).where(t.sandbox.c.id == id).values(**held))
    await node.settled()
    await node.settled()
    assert (await rows(node.database))[id].cause == "lost"


async def test_the_end_of_a_lease_ends_what_its_node_held(node: Node, database_url: str) -> None:
    (running,) = await asked(node.database, group="r")
    await node.settled()
    (claimed,) = await asked(node.database, group="c")
    async with node.database.begin(HostFence(NODE, 1)) as connection:
        assert await store.claim(connection, HostFence(NODE, 1), ())
    with psycopg.connect(database_url, autocommit=True) as keeper:
        leases.give_up(keeper, NODE, 1, "k", "the host exited with status -9")
    found = await rows(node.database)
    row = found[running]
    assert (row.state, row.cause) == ("ended", "node_agent_lost")
    assert row.detail == "the host exited with status -9"
    assert (found[claimed].state, found[claimed].host_id) == ("requested", None)
    await node.settled()
    assert (await rows(node.database))[running].cause == "node_agent_lost", "fenced out"


async def test_one_that_waits_in_vain_ends_with_what_it_waited_for(database: Store) -> None:
    ids = await asked(database, 2)
    async with database.begin() as connection:
        late = {"ends_at": func.now(), "detail": "memory: no_room"}
        await connection.execute(update(t.sandbox).values(**late))
    async with database.begin() as connection:
        assert sorted(await store.sweep(connection)) == ids
    row = (await rows(database))[ids[0]]
    assert (row.state, row.cause, row.detail) == ("ended", "no_room", "memory: no_room")


async def test_one_that_nobody_has_claimed_is_killed_by_its_row_alone(database: Store) -> None:
    (id,) = await asked(database)
    await wants(database, id, SandboxState.ENDED)
    row = (await rows(database))[id]
    assert (row.state, row.cause) == ("ended", "killed")


async def test_tenants_go_last_on_the_ladder(node: Node) -> None:
    (id,) = await asked(node.database)
    await node.settled()
    key = node.sandboxes.held[id].member
    job = ask()
    await node.slots.take(SandboxPurpose.AGENT, 1, job)
    account = node.sandboxes.relief.account
    for one, size in ((key, 60_000), (job.members[0], 5_000)):
        node.runtime.hold(one, size)
        account.measure(one, node.runtime.live[one].stats())
    lost: list[Any] = []
    node.sandboxes.relief.lose = lambda member, cause: lost.append(member)
    assert account.ledger.pages.resident_bytes > 0.95 * 64 * 1024 * MIB
    for second in range(3):
        node.sandboxes.relief.look(float(second), 0)
    assert lost == [job.members[0]]
