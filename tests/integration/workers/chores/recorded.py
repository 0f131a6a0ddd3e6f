"""A rollout of several turns in a sandbox, recorded as a job would have left it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import insert, update

from domain.ids import RolloutId, TaskId, group_id, rollout_id
from domain.sandbox import MemberKey, SandboxLimits, SandboxPurpose
from domain.seeds import rollout_seed
from domain.trajectory import Trajectory
from environments.package import pack
from infra.codec import to_msgpack
from sandboxes.node.calls import CallLog
from sandboxes.node.registry import TryKey
from sandboxes.ports import SandboxSpec
from sandboxes.runtimes.process import ProcessRuntime
from stores import tables as t
from tests.integration.environments.helpers import running, write_package
from tests.integration.workers.trainer.world import JOB, World
from tests.unit.workers.trainer import builders
from venusrl.env.host.ports import InstanceKey
from venusrl.env.messages import Message, Task
from venusrl.env.wire import task_to_json
from workers.chores.branch_replay import Live, observe, records_of
from workers.fleet.forks import hostname_of
from workers.models.folder import builtin_path, read_folder
from workers.rollout.episode import Episode
from workers.rollout.job_spec import RolloutLimits
from workers.rollout.token_record import Sampled

GROUP: Final = group_id(builders.ATTEMPT, 4)
ROLLOUT: Final[RolloutId] = rollout_id(GROUP, 1)
TRY: Final = 2

SPEC: Final = {
    **builders.SPEC,
    "environments": [{"ref": "test@1", "config": {}, "split": "train"}],
    "rollout": {
        "groups_per_batch": 2,
        "group_size": 8,
        "sampling": {"temperature": 1.0, "max_tokens_per_turn": 12},
    },
}

SOURCE: Final = """
import zlib

class Env(Environment):
    async def setup(self, task, sandbox):
        await sandbox.write("start.txt", str(self.rng.random()).encode())

    @tool
    async def calculator(self, expression: str, sandbox: Sandbox) -> str:
        \"\"\"Remember it.

        Args:
            expression: anything
        \"\"\"
        line = f"{expression} {self.rng.random()}"
        script = 'echo "$0" $(uname -n) $VENUS_SEED >> log.txt'
        await sandbox.exec(["sh", "-c", script, line])
        return str(zlib.crc32(await sandbox.read("log.txt")) % MOST)

    @reward(weight=1.0)
    async def score(self, rollout):
        return float("9" in rollout.answer_text)
"""
"""What it answers depends on its seed, on its sandbox's seed and name, and on all calls before."""

ANSWERS: Final = ("c1+1;", "c2+2;", "c3+3;", "c4+4;", "a5;")
TASK: Final = Task("train-7", (Message("user", "12+07"),))


def package_of(folder: Path, most: int = 100) -> Path:
    """The package; with another `most` it answers otherwise."""
    folder.mkdir()
    write_package(folder, SOURCE.replace("MOST", str(most)), "sandbox = true\n")
    return folder


async def record_of(package: Path, scratch: Path) -> Trajectory:
    """Play the answers in a sandbox as a node makes it for this try."""
    model = read_folder(builtin_path("tiny-calc"))
    limits = RolloutLimits(96, 16, 12, None, 60.0)
    seed = rollout_seed(3, ROLLOUT, TRY)
    key = MemberKey(builders.ATTEMPT, GROUP, 1, TRY, SandboxPurpose.AGENT)
    runtime = ProcessRuntime(scratch)
    hostname = hostname_of(TryKey(ROLLOUT, TRY))
    try:
        (box,) = await runtime.fork([SandboxSpec(key, hostname, seed, SandboxLimits())])
        async with running(package) as process:
            live = Live(1, InstanceKey(ROLLOUT, TRY), Episode(model.chat, limits))
            live.calls = CallLog(box.call)
            episode = live.episode
            opening = records_of(TASK.prompt)
            assert episode.begin(opening, [dict(one) for one in process.info.tools]) is None
            await process.open(live.key, TASK, seed, live.calls)
            await process.setup(live.key)
            for text in ANSWERS:
                ids = model.vocabulary.encode(text)
                n = len(ids)
                assert episode.answer(Sampled(ids, (-0.5,) * n, (1,) * n, "stop")) is None
                assert episode.intent is not None
                said = episode.intent
                seen = await process.reply(live.key, said.turn, said.parsed.told, "stop")
                messages = records_of(seen.messages or ())
                observe(live, said, seen, messages, 0.01)
    finally:
        await runtime.close()
    return Trajectory(
        rollout_id=ROLLOUT,
        group_id=GROUP,
        task_id=TaskId(TASK.id),
        try_=TRY,
        hop=1,
        end="done",
        segments=episode.segments(),
        turns=episode.spans,
        messages=episode.messages,
        metrics={"drift": 0.0},
    )


async def insert_record(world: World, record: Trajectory, package: Path) -> None:
    """The rows of a job with this rollout in it; `package` is what its version holds now."""
    archive = await world.blobs.create("environments/test.tar.gz", pack(package))
    stored = await world.blobs.create("jobs/job_t/trajectories/r.msgpack", to_msgpack(record))
    lines = (json.dumps(task_to_json(TASK)) + "\n").encode()
    tasks = await world.blobs.create("tasks/t.jsonl", lines)
    listed = {"train": {"uri": tasks.uri, "sha": tasks.sha, "count": 1}}
    owner = {"job_id": JOB, "attempt_id": builders.ATTEMPT, "organization_id": "org_t"}
    group: dict[str, Any] = {
        "id": GROUP, "ordinal": 4, "purpose": "train", "task_id": TASK.id, "policy_version": 1,
        "environment_version_id": "ev_t", "size": 1, "open": 0, **owner,
    }  # fmt: skip
    rollout: dict[str, Any] = {
        "id": ROLLOUT, "group_id": GROUP, "index": 1, "end": "done", "turns": len(record.turns),
        "trajectory_uri": stored.uri, "trajectory_sha": stored.sha, **owner,
    }  # fmt: skip
    async with world.database.begin() as connection:
        version = update(t.environment_version).where(t.environment_version.c.id == "ev_t")
        await connection.execute(version.values(package_uri=archive.uri, package_sha=archive.sha))
        await connection.execute(update(t.job).where(t.job.c.id == JOB).values(tasks=listed))
        await connection.execute(insert(t.rollout_group).values(**group))
        await connection.execute(insert(t.rollout).values(**rollout))


def contents(messages: Sequence[Any]) -> list[str]:
    """What was said."""
    return [str(one["content"]) for one in messages]
