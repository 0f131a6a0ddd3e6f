"""Grading over real Postgres, object store, environment processes and sandboxes."""

import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from domain.events import GradeFailed, GroupGraded
from domain.ids import GroupId, TaskId, rollout_id
from domain.sandbox import SandboxPurpose
from domain.states import End, Purpose
from domain.trajectory import GroupPayload, Segment, Trajectory
from domain.wire import Grade
from environments.package import pack
from infra import failpoints
from infra.clock import SystemClock
from infra.codec import from_msgpack, to_msgpack
from sandboxes.node.slots import Slots
from sandboxes.runtimes.process import ProcessRuntime
from stores import tables as t
from stores.blobs import Blobs
from stores.system.grading import commit_verdicts
from stores.unit_of_work import Database, HostFence
from tests.integration.environments.helpers import CALC, CHAOS, write_package
from tests.support.failpoints import ArmedFailpoints
from tests.support.fleet import start_process
from tests.support.requirements import requires
from tests.support.rows import ATTEMPT, NODE, Stored, insert_group, insert_job, spec_of
from tests.support.waiting import eventually
from venusrl.env.host.artefacts import STATE_ARTEFACT
from workers.fleet import grading, seams
from workers.fleet.environment_pool import EnvironmentPool, Start
from workers.fleet.grading import Grader
from workers.fleet.grading_sandboxes import GradingSandboxes
from workers.fleet.packages import Packages

pytestmark = [requires("bwrap"), pytest.mark.integration]


@dataclass
class Bench:
    """A grader over real stores, and what it told the leader."""

    database: Database
    blobs: Blobs
    grader: Grader
    environments: EnvironmentPool
    runtime: ProcessRuntime
    slots: Slots
    sent: list[Any] = field(default_factory=list)

    async def stored(
        self,
        content: str,
        end: End = End.DONE,
        *,
        index: int = 0,
        ordinal: int = 0,
        artefacts: Mapping[str, str] | None = None,
        prompt: str = "12+07",
    ) -> Stored:
        """A member with a stored trajectory that ends in this answer."""
        rollout = rollout_id(GroupId(f"grp_{ATTEMPT.removeprefix('att_')}_{ordinal:09d}"), index)
        trajectory = Trajectory(
            rollout_id=rollout,
            group_id=GroupId(rollout.rpartition("_")[0].replace("ro_", "grp_")),
            task_id=TaskId("train-0000"),
            try_=1,
            hop=1,
            end=end.value,
            segments=(Segment((1, 2, 3), (0, 1, 1), (0.0, -0.1, -0.2), (-1, 2, 3)),),
            turns=(),
            messages=(
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": content},
            ),
            artefacts=dict(artefacts or {}),
        )
        blob = await self.blobs.create(f"trajectories/{rollout}", to_msgpack(trajectory))
        return Stored(end, blob.uri, blob.sha)

    async def answers(self, *contents: str, ordinal: int = 0) -> list[Stored]:
        """Members that ended with these answers."""
        return [
            await self.stored(text, index=index, ordinal=ordinal)
            for index, text in enumerate(contents)
        ]

    async def graded(self, group: GroupId, epoch: int = 1) -> GroupGraded:
        """Grade and wait for the event."""
        self.grader.grade(Grade(group, epoch))
        return await eventually(lambda: self.heard(GroupGraded, group), 20.0)

    async def failed(self, group: GroupId, epoch: int = 1) -> GradeFailed:
        """Grade and wait for the failure."""
        self.grader.grade(Grade(group, epoch))
        return await eventually(lambda: self.heard(GradeFailed, group), 20.0)

    def heard(self, kind: type[Any], group: GroupId) -> Any:
        """The newest frame of a kind about a group."""
        found = [f for f in self.sent if isinstance(f, kind) and f.group_id == group]
        return found[-1] if found else None

    async def rows(self, group: GroupId) -> tuple[Any, Sequence[Any]]:
        """The group's row and its rollouts'."""
        async with self.database.begin() as connection:
            one = await connection.execute(
                select(t.rollout_group).where(t.rollout_group.c.id == group)
            )
            many = await connection.execute(
                select(t.rollout)
                .where(t.rollout.c.group_id == group)
                .order_by(t.rollout.c["index"])
            )
            return one.one(), many.all()

    async def change_group(self, group: GroupId, **values: Any) -> None:
        """Another writer's update of the group."""
        async with self.database.begin() as connection:
            await connection.execute(
                update(t.rollout_group).where(t.rollout_group.c.id == group).values(**values)
            )


async def make_bench(
    database_url: str,
    folder: Path,
    package: Path,
    spec: Mapping[str, Any] | None = None,
    starter: Callable[[Database], Start] = lambda _: start_process,
) -> Bench:
    database = Database(database_url)
    blobs = Blobs((folder / "objects").as_uri())
    archive = await blobs.create("package.tar.gz", pack(package))
    lines = [{"id": f"train-{n:04d}", "prompt": "12+07", "answer": "19"} for n in range(3)]
    listed = await blobs.create("tasks", "\n".join(json.dumps(one) for one in lines).encode())
    stored = {"uri": listed.uri, "sha": listed.sha, "count": 3}
    tasks = {"train": stored, "test": stored}
    await insert_job(database, spec or spec_of(), package=(archive.uri, archive.sha), tasks=tasks)
    runtime, clock, slots = ProcessRuntime(folder / "guest"), SystemClock(), Slots(3, 1)
    environments = EnvironmentPool(starter(database), clock)
    sent: list[Any] = []
    grader = Grader(
        database=database,
        fence=HostFence(NODE, 1),
        blobs=blobs,
        packages=Packages(blobs, folder / "packages"),
        environments=environments,
        sandboxes=GradingSandboxes(runtime, slots),
        notify=sent.append,
        clock=clock,
    )
    return Bench(database, blobs, grader, environments, runtime, slots, sent)


async def close_bench(bench: Bench) -> None:
    await bench.grader.close()
    await bench.environments.close()
    assert bench.runtime.keys() == ()
    assert bench.slots.taken(SandboxPurpose.GRADER) == 0
    await bench.runtime.close()
    await bench.database.close()


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    made = await make_bench(database_url, tmp_path, CALC)
    yield made
    await close_bench(made)


async def test_a_group_is_graded_in_one_transaction(bench: Bench) -> None:
    group = await insert_group(bench.database, await bench.answers("19", "20", "x", "19"))
    event = await bench.graded(group)
    assert event.mean_reward == pytest.approx(1.8 / 4)
    assert event == GroupGraded(group, 1, 4, False, 2, event.mean_reward)
    row, members = await bench.rows(group)
    assert row.graded_at is not None
    assert (row.usable, row.zero_variance, row.disposition) == (4, False, "pending")
    assert [one.reward for one in members] == [1.0, 0.0, -0.2, 1.0]
    assert [one.verdict for one in members] == ["scored"] * 4
    assert members[0].components == {
        "rewards": {"correct": 1.0},
        "metrics": {"n_calls": 0.0},
        "full_marks": 1.0,
    }
    payload = from_msgpack(await bench.blobs.read(row.payload_uri, row.payload_sha), GroupPayload)
    assert [one.advantage for one in payload.members] == [one.advantage for one in members]
    assert payload.members[0].segments[0].token_ids == (1, 2, 3)


async def test_a_graded_group_is_answered_from_its_row(bench: Bench) -> None:
    group = await insert_group(bench.database, await bench.answers("19", "20"))
    first = await bench.graded(group)
    bench.sent.clear()
    await bench.environments.close()
    again = await bench.graded(group, epoch=4)
    assert (again.grade_epoch, again.usable, again.mean_reward) == (4, 2, first.mean_reward)
    assert bench.environments.attempts() == ()


async def test_the_same_request_twice_is_one_grading(bench: Bench) -> None:
    group = await insert_group(bench.database, await bench.answers("19", "20"))
    bench.grader.grade(Grade(group, 1))
    bench.grader.grade(Grade(group, 1))
    await eventually(lambda: bench.heard(GroupGraded, group))
    await eventually(lambda: not bench.grader._running)
    assert len(bench.sent) == 1


async def test_failed_and_cancelled_members_shrink_the_group(bench: Bench) -> None:
    members = [
        *await bench.answers("19", "20"),
        Stored(End.ENV_FAILED),
        Stored(End.CANCELLED),
    ]
    group = await insert_group(bench.database, members)
    event = await bench.graded(group)
    assert (event.usable, event.mean_reward) == (2, 0.5)
    _, rows = await bench.rows(group)
    assert [one.unscorable_reason for one in rows] == [None, None, "env_failed", "cancelled"]
    assert [one.disposition for one in rows[2:]] == ["dropped(shrunk)", "dropped(cancelled)"]


async def test_a_damaged_trajectory_makes_its_rollout_unscorable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "PAUSE_S", 0.01)
    members = await bench.answers("19", "20", "19")
    members[2] = Stored(End.DONE, members[2].uri, "0" * 64)
    group = await insert_group(bench.database, members)
    assert (await bench.graded(group)).usable == 2
    _, rows = await bench.rows(group)
    assert rows[2].unscorable_reason == "trajectory_unreadable"


async def test_an_evaluation_group_is_evaluated_at_its_step(bench: Bench) -> None:
    members = await bench.answers("19", "20")
    group = await insert_group(bench.database, members, purpose=Purpose.EVALUATION)
    event = await bench.graded(group)
    assert (event.usable, event.mean_reward) == (2, 0.5)
    row, rows = await bench.rows(group)
    assert (row.disposition, row.payload_uri) == ("evaluated(0)", None)
    assert {one.disposition for one in rows} == {"evaluated(0)"}


@pytest.mark.parametrize("change", [{"grade_epoch": 2}, {"disposition": "dropped(cancelled)"}])
async def test_an_overtaken_grading_writes_nothing_and_is_silent(
    bench: Bench, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group changes while rewards run: the commit's compare-and-set must lose."""
    group = await insert_group(bench.database, await bench.answers("19", "20"))
    original = commit_verdicts

    async def late(*arguments: Any) -> None:
        await bench.change_group(group, **change)
        await original(*arguments)

    monkeypatch.setattr(grading, "commit_verdicts", late)
    bench.grader.grade(Grade(group, 1))
    await eventually(lambda: not bench.grader._running)
    row, rows = await bench.rows(group)
    assert row.graded_at is None
    assert [one.verdict for one in rows] == [None, None]
    assert bench.sent == []


async def test_a_host_whose_lease_moved_on_writes_nothing(bench: Bench) -> None:
    group = await insert_group(bench.database, await bench.answers("19", "20"))
    async with bench.database.begin() as connection:
        await connection.execute(update(t.host_lease).values(epoch=2))
    bench.grader.grade(Grade(group, 1))
    await eventually(lambda: not bench.grader._running)
    row, _ = await bench.rows(group)
    assert row.graded_at is None
    assert bench.sent == []


async def test_a_death_before_the_commit_leaves_nothing_but_a_payload(
    bench: Bench, armed: ArmedFailpoints
) -> None:
    failpoints.configure("test", armed.environ)
    armed.arm(f"{seams.BEFORE_GRADE_COMMIT}=raise")
    group = await insert_group(bench.database, await bench.answers("19", "20"))
    assert (await bench.failed(group)).cause == "internal: FailpointError"
    row, _ = await bench.rows(group)
    assert row.graded_at is None
    # The next grade epoch has a payload path of its own.
    await bench.change_group(group, grade_epoch=2)
    assert (await bench.graded(group, epoch=2)).grade_epoch == 2


async def test_a_death_after_the_commit_is_found_by_the_next_request(
    bench: Bench, armed: ArmedFailpoints
) -> None:
    failpoints.configure("test", armed.environ)
    armed.arm(f"{seams.AFTER_GRADE_COMMIT}=raise")
    group = await insert_group(bench.database, await bench.answers("19", "20"))
    await bench.failed(group)
    assert (await bench.graded(group)).usable == 2


async def test_a_killed_environment_fails_the_grading_with_its_cause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await insert_group(bench.database, await bench.answers("19", "20"))
    await bench.graded(group)
    (entry,) = bench.environments._entries.values()
    assert entry.start is not None
    process = entry.start.result()
    later = await insert_group(
        bench.database, await bench.answers("19", "20", ordinal=1), ordinal=1
    )
    original = process.grade

    async def dying(*arguments: Any) -> Any:
        os.kill(process.pid, signal.SIGKILL)  # type: ignore[attr-defined]  # of the real adapter
        return await original(*arguments)

    monkeypatch.setattr(process, "grade", dying)
    failed = await bench.failed(later)
    assert "process_killed" in failed.cause or "process_exited" in failed.cause
    row, rows = await bench.rows(later)
    assert row.graded_at is None
    assert [one.verdict for one in rows] == [None, None]
    await bench.change_group(later, grade_epoch=2)
    assert (await bench.graded(later, epoch=2)).usable == 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("reward_nan", "not_finite"),
        ("reward_inf", "not_finite"),
        ("reward_none", "bad_type"),
        ("reward_bool", "bad_type"),
        ("reward_text", "bad_type"),
        ("reward_empty", "bad_type"),
        ("reward_huge", "out_of_range"),
        ("grader_raise", "raised"),
        ("grader_sigkill", "grader_crashed"),
        ("grader_hang", "timeout"),
    ],
)
async def test_a_broken_reward_is_unscorable_and_never_zero(
    database_url: str, tmp_path: Path, fault: str, reason: str
) -> None:
    config = {"faults": {fault: 1.0}}
    spec = spec_of(environments=[{"ref": "chaos@1", "config": config, "split": "train"}])
    bench = await make_bench(database_url, tmp_path, CHAOS, spec)
    group = await insert_group(bench.database, await bench.answers("19", "20"))
    event = await bench.graded(group)
    assert (event.usable, event.mean_reward) == (0, None)
    row, rows = await bench.rows(group)
    assert [one.unscorable_reason for one in rows] == [reason] * 2
    assert [one.reward for one in rows] == [None, None]
    assert row.disposition == "dropped(unscorable)"
    await close_bench(bench)


WEIGHTED = """
class Env(Environment):
    @reward
    async def polite(self, rollout: Rollout) -> Value:
        return 1.0
    @reward(weight=-3.0)
    async def late(self, rollout: Rollout) -> Value:
        return 0.0
    @group_reward(weight=3.0)
    async def right(self, rollouts: list[Rollout]) -> list[Value]:
        return [float(one.answer_text == "19") for one in rollouts]
    @reward(weight=0.0)
    async def shown(self, rollout: Rollout) -> Value:
        return Unscorable("mine")
    @metric
    async def length(self, rollout: Rollout) -> Value:
        return 2.0
"""


async def test_a_verdict_names_the_full_marks_of_its_environment(
    database_url: str, tmp_path: Path
) -> None:
    """The sum of the positive weights of rewards and group rewards."""
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder, WEIGHTED)
    bench = await make_bench(database_url, tmp_path, folder)
    members = [*await bench.answers("19", "20"), Stored(End.ENV_FAILED)]
    group = await insert_group(bench.database, members, purpose=Purpose.EVALUATION)
    await bench.graded(group)
    _, rows = await bench.rows(group)
    assert [one.reward for one in rows] == [4.0, 1.0, None]
    assert [one.components.get("full_marks") for one in rows] == [4.0, 4.0, None]
    await close_bench(bench)


STATEFUL = """
class Env(Environment):
    async def restore(self, state):
        self.seen = state["n"]
    @reward()
    async def counted(self, rollout: Rollout) -> Value:
        return float(self.seen) + (100.0 if ".venus/state.json" in rollout.artefacts else 0.0)
"""


async def test_the_last_snapshot_is_restored_before_rewards_run(
    database_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder, STATEFUL)
    bench = await make_bench(database_url, tmp_path, folder)
    members = [
        await bench.stored("x", index=n, artefacts={STATE_ARTEFACT: json.dumps({"n": n})})
        for n in range(3)
    ]
    group = await insert_group(bench.database, members)
    await bench.graded(group)
    _, rows = await bench.rows(group)
    assert [one.reward for one in rows] == [0.0, 1.0, 2.0]
    await close_bench(bench)


IN_SANDBOX = """
class Env(Environment):
    @reward(timeout_s=20)
    async def tested(self, rollout: Rollout, grader: Sandbox) -> Value:
        script = "cat /grader/key solution.txt; ls -A | grep -vc tmp; touch /grader/x || true"
        out = await grader.exec(["sh", "-c", script])
        return Unscorable(out.text) if rollout.answer_text == "show" else float("42" in out.text)
"""


async def test_a_reward_that_asks_for_a_sandbox_gets_a_fresh_one(
    database_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "package"
    (folder / "grader").mkdir(parents=True)
    write_package(folder, IN_SANDBOX, "grading_sandbox = true\n")
    (folder / "grader" / "key").write_text("key ")
    bench = await make_bench(database_url, tmp_path, folder)
    members = [
        await bench.stored(text, index=index, artefacts={"solution.txt": text})
        for index, text in enumerate(("42", "43", "show"))
    ]
    group = await insert_group(bench.database, members)
    event = await bench.graded(group)
    assert event.usable == 2
    _, rows = await bench.rows(group)
    assert [one.reward for one in rows] == [1.0, 0.0, None]
    assert rows[2].unscorable_reason == "key show1\n"
    await close_bench(bench)


async def test_a_task_that_is_gone_fails_the_grading_with_its_cause(bench: Bench) -> None:
    members = await bench.answers("19", "20")
    group = await insert_group(bench.database, members, task_id="train-9999")
    assert "train-9999" in (await bench.failed(group)).cause
