"""One attempt in a real database, as the coordinator and the grader would have left it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from sqlalchemy import Row, Table, func, insert, select, update

from domain.events import CheckpointWritten, PayloadLost, StepCommitted, TrainerFailed, TrainerReady
from domain.ids import AttemptId, GroupId, HostId, JobId, group_id, host_id
from domain.trajectory import GroupPayload
from domain.wire import Checkpoint, Wake
from infra.clock import SystemClock
from infra.codec import to_msgpack
from infra.ids import IdSource
from infra.names import payload_path
from stores import tables as t
from stores.blobs import Blobs
from stores.unit_of_work import Database, HostFence
from tests.support.waiting import eventually
from tests.unit.workers.trainer import builders
from workers.trainer.host import TrainerHost, TrainerPorts
from workers.trainer.thread import TorchThread

JOB = JobId("job_t")
ATTEMPT = builders.ATTEMPT
TRAINER: HostId = host_id(ATTEMPT, "trainer")


@dataclass
class World:
    """Rows and objects of one attempt, and the trainers that ran on it."""

    database: Database
    blobs: Blobs
    folder: Path
    epoch: int = 0
    attempt: AttemptId = ATTEMPT
    spec: Mapping[str, object] = field(default_factory=lambda: builders.SPEC)

    async def create(self, **attempt: object) -> None:
        """Insert organization, project, job, attempt and the trainer's lease."""
        owner = {"organization_id": "org_t", "project_id": "prj_t"}
        version = {"environment_id": "env_t", "version": 1, "content_sha": "c", "package_uri": "p"}
        rows: list[tuple[Table, dict[str, object]]] = [
            (t.organization, {"id": "org_t", "name": "o"}),
            (t.project, {"id": "prj_t", "organization_id": "org_t", "name": "p"}),
            (t.environment, {"id": "env_t", "name": "e", **owner}),
            (
                t.environment_version,
                {"id": "ev_t", "package_sha": "s", "manifest": {}, "state": "ready", **version},
            ),
            (
                t.job,
                {
                    "id": JOB,
                    "name": "j",
                    "spec": dict(self.spec),
                    "submitted_spec": {},
                    "environment_version_id": "ev_t",
                    "attempt_id": ATTEMPT,
                    "state": "running",
                    **owner,
                },
            ),
            (t.attempt, {"id": self.attempt, "job_id": JOB, "number": 1, **attempt}),
            (
                t.host_lease,
                {"id": TRAINER, "kind": "trainer", "desired": "up", "epoch": 0, "owner": "me"},
            ),
        ]
        async with self.database.begin() as connection:
            for table, values in rows:
                await connection.execute(insert(table).values(values))

    async def restart(self, attempt: AttemptId, checkpoint_id: str, base_step: int) -> None:
        """What a user's restart from a checkpoint makes: a new attempt that starts at its step."""
        self.attempt = attempt
        row = {"from_checkpoint_id": checkpoint_id, "base_step": base_step}
        async with self.database.begin() as connection:
            await connection.execute(
                insert(t.attempt).values(id=attempt, job_id=JOB, number=2, **row)
            )

    async def raise_epoch(self) -> HostFence:
        """What a new claim does: former trainers are fenced out."""
        self.epoch += 1
        async with self.database.begin() as connection:
            await connection.execute(update(t.host_lease).values(epoch=self.epoch, owner="me"))
        return HostFence(TRAINER, self.epoch)

    async def grade(
        self, ordinal: int, payload: GroupPayload | None = None, *, is_stored: bool = True
    ) -> GroupId:
        """Insert a graded group of 8 whose payload holds the usable members."""
        name = group_id(ATTEMPT, ordinal)
        payload = payload or builders.group(ordinal, members=8)
        uri = payload_path(JOB, name, 1)
        content = to_msgpack(payload)
        blob = await self.blobs.create(uri, content) if is_stored else None
        counted: dict[str, float] = {member.rollout_id: member.reward for member in payload.members}
        base = {"job_id": JOB, "attempt_id": self.attempt, "organization_id": "org_t"}
        async with self.database.begin() as connection:
            await connection.execute(
                insert(t.rollout_group).values(
                    id=name,
                    ordinal=ordinal,
                    purpose="train",
                    task_id=payload.task_id,
                    environment_version_id="ev_t",
                    policy_version=0,
                    size=8,
                    open=0,
                    closed_at=func.now(),
                    graded_at=func.now(),
                    payload_uri=uri,
                    payload_sha=blob.sha if blob else "0" * 64,
                    **base,
                )
            )
            for index in range(8):
                rollout = f"ro_{name.removeprefix('grp_')}_{index:03d}"
                is_scored = rollout in counted
                await connection.execute(
                    insert(t.rollout).values(
                        id=rollout,
                        group_id=name,
                        index=index,
                        closed_at=func.now(),
                        end="done",
                        verdict="scored" if is_scored or index == 7 else "unscorable",
                        reward=counted.get(rollout, 0.0) if is_scored or index == 7 else None,
                        **base,
                    )
                )
        return name

    async def assign(self, step: int, position: int, group: GroupId) -> None:
        """What the leader's AssignGroup does."""
        row = {"job_id": JOB, "attempt_id": self.attempt, "step": step, "position": position}
        async with self.database.begin() as connection:
            await connection.execute(
                insert(t.batch_member).values(group_id=group, staleness=0, **row)
            )

    async def fill(self, step: int) -> list[GroupId]:
        """Grade and assign a whole batch of two; its groups depend on the step alone."""
        groups = []
        for position in range(2):
            ordinal = step * 10 + position
            versions = (step - 1, max(step - 2, 0))
            payload = builders.group(ordinal, members=4 + 4 * position, versions=versions)
            groups.append(await self.grade(ordinal, payload))
            await self.assign(step, position, groups[-1])
        return groups

    async def rows(self, table: Table, **where: object) -> list[Row[tuple[object, ...]]]:
        """Rows of a table, filtered by equality."""
        query = select(table)
        for name, value in where.items():
            query = query.where(table.c[name] == value)
        async with self.database.begin() as connection:
            return list(await connection.execute(query.order_by(*table.primary_key.columns)))

    async def shas(self) -> list[str]:
        """Weights shas of all committed steps in order."""
        rows = await self.rows(t.train_step, attempt_id=self.attempt)
        return [row.weights_sha for row in rows]


@dataclass
class Running:
    """A trainer that runs in this process."""

    host: TrainerHost
    task: "asyncio.Task[None]"
    sent: list[object]

    def committed(self) -> list[int]:
        """Steps that were announced."""
        return [e.step for e in self.sent if isinstance(e, StepCommitted)]

    def ready(self) -> list[int]:
        """Versions that were announced as ready."""
        return [e.policy.version for e in self.sent if isinstance(e, TrainerReady)]

    def failures(self) -> list[TrainerFailed]:
        """Causes that were told."""
        return [e for e in self.sent if isinstance(e, TrainerFailed)]

    def lost(self) -> list[PayloadLost]:
        """Payloads that were told to be lost."""
        return [e for e in self.sent if isinstance(e, PayloadLost)]

    def checkpoints(self) -> list[CheckpointWritten]:
        """Checkpoints that were told to be whole."""
        return [e for e in self.sent if isinstance(e, CheckpointWritten)]

    async def is_ready(self) -> None:
        """Wait until the trainer announced itself."""
        await eventually(lambda: self.ready() or self.task.done())
        assert self.ready()

    async def reaches(self, step: int) -> None:
        """Wait until this step was announced."""
        self.host.on_frame(Wake(step))
        await eventually(lambda: step in self.committed() or self.task.done(), 20)
        assert step in self.committed()

    async def checkpoint(self, step: int, next_ordinal: int = 0) -> CheckpointWritten:
        """Ask for a checkpoint and wait for it."""
        told = len(self.checkpoints())
        self.host.on_frame(Checkpoint(step, "periodic", next_ordinal, ()))
        await eventually(lambda: len(self.checkpoints()) > told or self.task.done())
        return self.checkpoints()[told]


@contextlib.asynccontextmanager
async def trainer(world: World) -> AsyncIterator[Running]:
    """A new trainer at a raised epoch, cancelled at the end of the block: nothing is flushed."""
    fence = await world.raise_epoch()
    thread = TorchThread()
    sent: list[object] = []
    ports = TrainerPorts(
        database=world.database,
        blobs=world.blobs,
        thread=thread,
        device=torch.device("cpu"),
        cache=world.folder / "cache",
        clock=SystemClock(),
        ids=IdSource(),
        emit=sent.append,
        set_mode=lambda _: None,
    )
    host = TrainerHost(fence, world.attempt, ports)
    task = asyncio.create_task(host.run())
    try:
        yield Running(host, task, sent)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        thread.close()
