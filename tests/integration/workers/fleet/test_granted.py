"""What a job gives its environment, on a node with real stores: secrets, and judges that are counted."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from domain.events import GroupGraded
from domain.ids import GroupId
from domain.trajectory import Trajectory
from domain.wire import Grade
from infra.clock import SystemClock
from infra.codec import from_msgpack, to_msgpack
from infra.logging import configure, get_logger
from infra.settings import Settings
from infra.vault import Vault, make_key_file, secret_context
from stores import bill
from stores import secrets as store
from stores.environments import Owner
from stores.secret_tables import judge_use, secret
from stores.secrets import NewSecret
from stores.unit_of_work import Database
from tests.integration.environments.helpers import write_package
from tests.integration.workers.fleet.test_grading import Bench, close_bench, make_bench
from tests.support.chat_server import Script, chat_server, completion
from tests.support.requirements import requires
from tests.support.rows import (
    JOB,
    ORGANIZATION,
    PROJECT,
    Stored,
    insert_group,
    spec_of,
)
from venusrl.env.host import chat_wire
from venusrl.env.host.ports import EnvironmentCrashed
from workers.fleet.starting import EnvironmentStarter

pytestmark = [requires("bwrap"), pytest.mark.integration]

VALUE = "canary-90fe-value-of-a-secret"
KEY = "canary-41aa-key-of-a-judge"

SEES = """
class Env(Environment):
    @reward(weight=1.0)
    async def seen(self, rollout: Rollout) -> float:
        return float(len(os.environ["TOKEN"]))

    @metric
    async def shown_outside(self, rollout: Rollout) -> float:
        seen = ""
        for process in ("1", "self"):
            for name in ("cmdline", "environ"):
                try:
                    seen += open(f"/proc/{process}/{name}").read()
                except PermissionError:
                    pass
        assert "venusrl" in seen
        return float(os.environ["TOKEN"] in seen)
"""

RAISES = """
class Env(Environment):
    @reward(weight=1.0)
    async def broken(self, rollout: Rollout) -> float:
        print("the token is", os.environ["TOKEN"])
        raise ValueError("x" * 450 + os.environ["TOKEN"])
"""

ASKS = """
class Env(Environment):
    @reward(weight=1.0)
    async def judged(self, rollout: Rollout) -> float:
        return float(await self.judge.ask(rollout.messages[-1].content))
"""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_wire, "BACKOFF_MAX_S", 0.0)


@asynccontextmanager
async def benched(
    database_url: str, folder: Path, source: str, **spec: Any
) -> AsyncIterator[Bench]:
    """A grader whose environment is of this source, in a project that has two secrets."""
    package = folder / "package"
    package.mkdir()
    write_package(package, source, "sandbox = false\n")
    make_key_file(folder)
    settings = Settings.from_env(
        {"VENUS_HOME": str(folder), "VENUS_JUDGE_HOSTS": "127.0.0.1", "DATABASE_URL": database_url}
    )
    starters: list[EnvironmentStarter] = []

    def starter(database: Database) -> Callable[..., Any]:
        starters.append(EnvironmentStarter(settings, database, SystemClock()))
        return starters[0].start

    made = await make_bench(database_url, folder, package, spec_of(**spec), starter)
    try:
        for name, value in (("token", VALUE), ("judge-key", KEY)):
            sealed = Vault.of(settings).seal(value, secret_context(PROJECT, name))
            async with made.database.begin() as connection:
                new = NewSecret(f"sec_{name}", name, sealed)
                await store.put(connection, Owner(ORGANIZATION, PROJECT), new)
        yield made
    finally:
        await close_bench(made)
        await starters[0].close()


def judged(url: str) -> dict[str, Any]:
    """A spec's judges."""
    judge = {"url": url, "model": "m", "secret": "judge-key", "max_concurrency": 2}
    return {"j": {**judge, "base": None, "max_cost_usd": None}}


async def uses(bench: Bench) -> list[tuple[Any, ...]]:
    """Rows of judge use: rollout's index, judge, counts."""
    columns = (
        *(judge_use.c.judge, judge_use.c.calls, judge_use.c.failed),
        *(judge_use.c.prompt_tokens, judge_use.c.sampled_tokens),
    )
    async with bench.database.begin() as connection:
        rows = await connection.execute(select(*columns).order_by(judge_use.c.rollout_id))
        return [tuple(row) for row in rows]


async def test_user_code_finds_its_secret_and_nothing_else_shows_it(
    database_url: str, tmp_path: Path
) -> None:
    given = {"TOKEN": "token"}
    async with benched(database_url, tmp_path, SEES, secrets=given) as bench:
        group = await insert_group(bench.database, await bench.answers("19", "20"))
        await bench.graded(group)
        _, rows = await bench.rows(group)
    assert [row.reward for row in rows] == [len(VALUE)] * 2
    assert [row.components["metrics"]["shown_outside"] for row in rows] == [0.0, 0.0]


async def test_a_reward_that_raises_its_secret_leaves_no_trace_of_it(
    database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with benched(database_url, tmp_path, RAISES, secrets={"TOKEN": "token"}) as bench:
        group = await insert_group(bench.database, await bench.answers("19", "20"))
        await bench.graded(group)
        _, rows = await bench.rows(group)
    for row in rows:
        detail = row.components["rewards"]["broken"]["detail"]
        assert "raised ValueError" in detail
        assert "canary" not in json.dumps([str(one) for one in row])
        assert VALUE[:12] not in detail
    assert "canary" not in "".join(capfd.readouterr())


async def test_while_an_attempt_runs_here_the_log_strikes_its_values(
    database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {"TOKEN": "token"}
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        async with benched(database_url, tmp_path, SEES, secrets=given) as bench:
            configure("node")
            group = await insert_group(bench.database, await bench.answers("19", "20"))
            await bench.graded(group)
            get_logger().warning("some.event", cause=ValueError(VALUE), deep={"a": [VALUE]})
            logging.getLogger("library").warning("says %s", VALUE)
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
    said = capfd.readouterr().err
    assert "some.event" in said
    assert "says [redacted]" in said
    assert VALUE not in said


async def test_a_secret_that_is_gone_fails_the_grading_by_name(
    database_url: str, tmp_path: Path
) -> None:
    async with benched(database_url, tmp_path, SEES, secrets={"TOKEN": "token"}) as bench:
        async with bench.database.begin() as connection:
            await connection.execute(delete(secret).where(secret.c.name == "token"))
        group = await insert_group(bench.database, await bench.answers("19", "20"))
        failed = await bench.failed(group)
    assert EnvironmentCrashed.__name__ in failed.cause
    assert "secret_unavailable" in failed.cause
    assert "'token'" in failed.cause


async def test_a_row_that_was_copied_from_another_name_does_not_open(
    database_url: str, tmp_path: Path
) -> None:
    async with benched(database_url, tmp_path, SEES, secrets={"TOKEN": "token"}) as bench:
        async with bench.database.begin() as connection:
            other = select(secret.c.sealed).where(secret.c.name == "judge-key").scalar_subquery()
            changed = update(secret).where(secret.c.name == "token").values(sealed=other)
            await connection.execute(changed)
        group = await insert_group(bench.database, await bench.answers("19", "20"))
        failed = await bench.failed(group)
    assert "not its own" in failed.cause
    assert "canary" not in failed.cause


async def graded_with(
    database_url: str, folder: Path, script: Script, contents: tuple[str, ...] = ("1", "2")
) -> tuple[list[Any], list[tuple[Any, ...]], list[bill.JudgeTotal]]:
    """Rollouts, rows of use and the job's totals after one grading."""
    with chat_server(script) as server:
        async with benched(database_url, folder, ASKS, judges=judged(server.url)) as bench:
            group = await insert_group(bench.database, await bench.answers(*contents))
            await bench.graded(group)
            _, rows = await bench.rows(group)
            async with bench.database.begin() as connection:
                totals = await bill.judges_of_job(connection, PROJECT, JOB)
            found = await uses(bench)
    assert set(server.keys) <= {f"Bearer {KEY}"}
    return list(rows), found, totals


async def test_a_judges_answers_are_rewards_and_are_counted_by_rollout(
    database_url: str, tmp_path: Path
) -> None:
    def script(body: Mapping[str, Any], _: int) -> Any:
        return completion(body["messages"][0]["content"], tokens=2)

    rows, found, totals = await graded_with(database_url, tmp_path, script)
    assert [row.reward for row in rows] == [1.0, 2.0]
    assert found == [("j", 1, 0, 10, 2)] * 2
    assert totals == [bill.JudgeTotal("j", 2, 2, 0, 20, 4)]
    shown = {"judge": "j", "calls": 1, "failed": 0, "prompt_tokens": 10, "sampled_tokens": 2}
    assert [row.components["judges"] for row in rows] == [[shown]] * 2


async def test_an_outage_of_the_judge_is_unscorable_and_never_a_reward(
    database_url: str, tmp_path: Path
) -> None:
    rows, found, _ = await graded_with(
        database_url, tmp_path, lambda *_: (500, f"down, your key was {KEY}")
    )
    assert [(row.verdict, row.unscorable_reason) for row in rows] == [
        ("unscorable", "judge_unreachable")
    ] * 2
    assert found == [("j", 0, 1, 0, 0)] * 2
    assert KEY not in json.dumps([str(one) for row in rows for one in row])


async def test_a_grading_that_is_repeated_counts_its_judge_once(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first grading dies between the judge's answers and its commit."""
    with chat_server(lambda *_: completion("0.5", tokens=2)) as server:
        async with benched(database_url, tmp_path, ASKS, judges=judged(server.url)) as bench:
            group = await insert_group(bench.database, await bench.answers("1", "2"))
            commit = bench.grader._commit

            async def dies(*_: Any) -> Any:
                raise asyncio.CancelledError

            monkeypatch.setattr(type(bench.grader), "_commit", dies)
            await first_grading(bench, group)
            assert await uses(bench) == []
            monkeypatch.setattr(type(bench.grader), "_commit", lambda _, given: commit(given))
            await bench.graded(group)
            assert await bench.graded(group) is not None
            found = await uses(bench)
    assert len(server.asked) == 4
    assert found == [("j", 1, 0, 10, 2)] * 2


async def first_grading(bench: Bench, group: GroupId) -> None:
    """Run a grading that is cut off."""
    with pytest.raises(asyncio.CancelledError):
        await bench.grader._graded(Grade(group, 1))
    assert bench.heard(GroupGraded, group) is None


async def test_what_turns_asked_is_counted_with_the_verdict(
    database_url: str, tmp_path: Path
) -> None:
    with chat_server(lambda *_: completion("0.5", tokens=2)) as server:
        async with benched(database_url, tmp_path, ASKS, judges=judged(server.url)) as bench:
            (first, second) = await bench.answers("1", "2")
            assert first.uri is not None
            stored = from_msgpack(await bench.blobs.read(first.uri, first.sha), Trajectory)
            stored.metrics.update({"judges//calls": 3.0, "judges//sampled_tokens": 30.0})
            blob = await bench.blobs.create("changed", to_msgpack(stored))
            changed = Stored(first.end, blob.uri, blob.sha)
            group = await insert_group(bench.database, [changed, second])
            await bench.graded(group)
            found = await uses(bench)
    assert found == [("j", 4, 0, 10, 32), ("j", 1, 0, 10, 2)]
