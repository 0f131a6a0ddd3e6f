"""One attempt in a real database, as the coordinator leaves it when rollouts are placed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Row, Table, insert, select, update

from domain import commands as c
from domain.events import RolloutClosed
from domain.ids import (
    GroupId,
    HostId,
    JobId,
    RolloutId,
    group_id,
    host_id,
    node_host_id,
    rollout_id,
)
from domain.states import End, Purpose
from domain.wire import Place
from infra.clock import Clock, SystemClock
from infra.proofs import key_sha
from stores import tables as t
from stores.blobs import Blobs
from stores.system import coordination
from stores.unit_of_work import Database, HostFence
from tests.unit.workers.rollout.builders import (
    ATTEMPT,
    CHAT,
    AgentTwin,
    limits,
    place,
    reply,
    sampled,
    tool,
    user,
)
from workers.rollout.closing import Closer
from workers.rollout.episode import Ending, Episode

JOB = JobId("job_r")
ENGINE: HostId = host_id(ATTEMPT, "engine0")
KEY = b"k" * 32

SPEC: Mapping[str, object] = {
    "model": {"base": "tiny-calc"},
    "environments": [{"ref": "calc@1", "max_turns": None, "wall_s": None}],
    "rollout": {"sampling": {"temperature": 1.0, "max_tokens_per_turn": 8}},
}


def finished_episode(turns: int = 1) -> tuple[Episode, Ending]:
    """An episode of `turns` tool calls and a final answer."""
    episode = Episode(CHAT, limits())
    episode.begin([user("1+1")])
    for turn in range(turns):
        episode.answer(sampled("c1+1;", version=turn + 3))
        episode.observe(reply(turn, tool("2", f"call_{turn}_0")))
    episode.answer(sampled("a2;", version=turns + 3))
    ending = episode.observe(reply(turns, done=True))
    assert ending is not None
    return episode, ending


@dataclass
class World:
    """Rows and objects of one attempt, and the one engine host of these tests."""

    database: Database
    blobs: Blobs
    folder: Path
    fence: HostFence = field(default_factory=lambda: HostFence(ENGINE, 1))

    async def create(self) -> None:
        """Insert organization, project, environment, job, attempt and the engine's lease."""
        owner = {"organization_id": "org_r", "project_id": "prj_r"}
        version = {"environment_id": "env_r", "version": 1, "content_sha": "c", "package_uri": "p"}
        manifest = {"limits": {"max_turns": 6, "wall_s": 60}}
        lease = {"kind": "engine", "desired": "up", "epoch": 1, "owner": "me"}
        rows: list[tuple[Table, dict[str, object]]] = [
            (t.organization, {"id": "org_r", "name": "o"}),
            (t.project, {"id": "prj_r", "organization_id": "org_r", "name": "p"}),
            (t.environment, {"id": "env_r", "name": "calc", **owner}),
            (
                t.environment_version,
                {"id": "ev_r", "package_sha": "s", "manifest": manifest, "state": "ready"}
                | version,
            ),
            (
                t.job,
                {
                    "id": JOB,
                    "name": "j",
                    "spec": dict(SPEC),
                    "submitted_spec": {},
                    "attempt_id": ATTEMPT,
                    "state": "running",
                    **owner,
                },
            ),
            (t.attempt, {"id": ATTEMPT, "job_id": JOB, "number": 1}),
            (t.host_lease, {"id": ENGINE, "key_sha": key_sha(KEY), **lease}),
        ]
        async with self.database.begin() as connection:
            for table, values in rows:
                await connection.execute(insert(table).values(values))

    async def open_group(self, size: int, ordinal: int = 7) -> tuple[GroupId, list[RolloutId]]:
        """A group as the coordinator opens it."""
        group = group_id(ATTEMPT, ordinal)
        command = c.OpenGroup(ATTEMPT, group, ordinal, Purpose.TRAIN, size, 0)
        origin = coordination.GroupOrigin(JOB, "org_r", "task-1", "ev_r")
        async with self.database.begin() as connection:
            await coordination.open_group(connection, command, origin)
        return group, [rollout_id(group, index) for index in range(size)]

    async def placed(self, rollout: RolloutId, hop: int = 1, **changed: object) -> Place:
        """Raise the hop as the coordinator does; the placement that the host gets."""
        command = c.PlaceRollout(
            rollout, 1, hop, self.fence.host_id, self.fence.epoch, node_host_id(0), 1, 0
        )
        async with self.database.begin() as connection:
            assert await coordination.raise_hop(connection, command)
        group = GroupId("grp_" + rollout.removeprefix("ro_").rpartition("_")[0])
        return place(rollout_id=rollout, group_id=group, hop=hop, **changed)

    def closer(self, clock: Clock | None = None, database: Database | None = None) -> Closer:
        """The real closer."""
        return Closer(
            database or self.database, self.fence, self.blobs, JOB, clock or SystemClock()
        )

    async def close(self, one: Place, closer: Closer | None = None) -> RolloutClosed:
        """Close a placement with a finished episode."""
        episode, ending = finished_episode()
        return await (closer or self.closer()).close(one, episode, ending, AgentTwin())

    async def coordinator_closes(self, rollout: RolloutId) -> None:
        """Cancel a rollout as the coordinator does."""
        command = c.CloseRollout(rollout, 1, 1, End.CANCELLED, "cancelled")
        async with self.database.begin() as connection:
            await coordination.close_rollout(connection, command)

    async def next_try(self, rollout: RolloutId) -> None:
        """End try 1 as the coordinator does."""
        command = c.EndTry(rollout, 1, 1, End.SANDBOX_LOST, "gone", 2)
        async with self.database.begin() as connection:
            await coordination.end_try(connection, command)

    async def raise_epoch(self) -> None:
        """What the next claim of the lease does."""
        async with self.database.begin() as connection:
            await connection.execute(update(t.host_lease).values(epoch=t.host_lease.c.epoch + 1))

    async def row(self, table: Table, row_id: str) -> Row[Any]:
        """One row by id."""
        async with self.database.begin() as connection:
            return (await connection.execute(select(table).where(table.c.id == row_id))).one()

    async def rows(self, table: Table) -> list[Row[Any]]:
        """All rows."""
        async with self.database.begin() as connection:
            return list(await connection.execute(select(table)))
