"""The chore that looks at a checkpoint, in its own process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.engine import Row

from infra.settings import Settings
from stores import tables as t
from stores.blobs import Blobs
from stores.unit_of_work import Database
from tests.integration.workers.trainer.world import World, trainer
from tests.support.failpoints import ArmedFailpoints
from workers.chores import main

pytestmark = pytest.mark.integration


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> Any:
    """An attempt with one checkpoint of step 0's policy."""
    database = Database(database_url, 3)
    yield World(database, Blobs((tmp_path / "objects").as_uri()), tmp_path)
    await database.close()


async def checkpointed(world: World) -> str:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        return (await running.checkpoint(0)).checkpoint_id


async def ask(world: World, request: Mapping[str, object], kind: str = "generate") -> str:
    row = {"id": "op_t", "project_id": "prj_t", "kind": kind, "state": "pending"}
    async with world.database.begin() as connection:
        await connection.execute(insert(t.operation).values(request=dict(request), **row))
    return "op_t"


async def outcome(world: World) -> Row[Any]:
    async with world.database.begin() as connection:
        return (await connection.execute(select(t.operation))).one()


def settings(world: World, environ: Mapping[str, str] | None = None) -> Settings:
    return Settings.from_env({**variables(world), **(environ or {})})


def variables(world: World) -> dict[str, str]:
    return {
        "DATABASE_URL": world.database.url,
        "OBJECT_STORE_URL": (world.folder / "objects").as_uri(),
        "VENUS_HOME": str(world.folder / "home"),
    }


async def test_a_look_at_a_checkpoint_answers_in_the_models_own_form(world: World) -> None:
    checkpoint = await checkpointed(world)
    operation = await ask(world, {"checkpoint_id": checkpoint, "prompt": "12+07", "max_tokens": 8})
    assert await main.run(settings(world), operation) == 0
    row = await outcome(world)
    assert (row.state, row.starts, row.error) == ("done", 1, None)
    assert row.result["finish"] in ("stop", "length")
    assert 1 <= row.result["sampled_tokens"] <= 8
    assert row.result["text"]
    assert row.result["weights_sha"] == (await world.shas())[0]


async def test_the_same_seed_gives_the_same_answer_twice(world: World) -> None:
    checkpoint = await checkpointed(world)
    look = {"checkpoint_id": checkpoint, "prompt": "12+07", "temperature": 1.0, "seed": 5}
    operation = await ask(world, look)
    await main.run(settings(world), operation)
    first = (await outcome(world)).result
    async with world.database.begin() as connection:
        await connection.execute(t.operation.delete())
    await main.run(settings(world), await ask(world, look))
    assert (await outcome(world)).result == first


async def test_a_conversation_is_gone_on_with(world: World) -> None:
    checkpoint = await checkpointed(world)
    call = {"id": "c1", "name": "calculator", "arguments": '{"expression": "12+07"}'}
    messages = [
        {"role": "user", "content": "12+07"},
        {"role": "assistant", "content": "c12+07;", "tool_calls": [call]},
        {"role": "tool", "content": "19", "tool_call_id": "c1"},
    ]
    look = {"checkpoint_id": checkpoint, "messages": messages, "max_tokens": 8}
    await main.run(settings(world), await ask(world, look))
    row = await outcome(world)
    assert (row.state, row.error) == ("done", None)
    assert row.result["prompt_tokens"] == len("^12+07=c12+07;r19;")


@pytest.mark.parametrize(
    ("kind", "request_", "code"),
    [
        ("generate", {"checkpoint_id": "ckpt_none", "prompt": "1+1"}, "not_found"),
        ("generate", {"prompt": "1+1"}, "bad_request"),
        ("dance", {}, "unknown_kind"),
    ],
)
async def test_what_cannot_be_done_fails_with_its_code(
    world: World, kind: str, request_: dict[str, object], code: str
) -> None:
    await world.create()
    assert await main.run(settings(world), await ask(world, request_, kind)) == 0
    row = await outcome(world)
    assert (row.state, row.error["code"]) == ("failed", code)
    assert row.ended_at is not None


async def test_a_prompt_longer_than_the_context_says_so(world: World) -> None:
    checkpoint = await checkpointed(world)
    operation = await ask(world, {"checkpoint_id": checkpoint, "prompt": "1" * 200})
    await main.run(settings(world), operation)
    assert (await outcome(world)).error["code"] == "context_overflow"


async def test_a_checkpoint_of_another_project_is_not_found(world: World) -> None:
    checkpoint = await checkpointed(world)
    async with world.database.begin() as connection:
        other = {"id": "prj_other", "organization_id": "org_t", "name": "other"}
        await connection.execute(insert(t.project).values(**other))
    operation = await ask(world, {"checkpoint_id": checkpoint, "prompt": "1+1"})
    async with world.database.begin() as connection:
        await connection.execute(t.operation.update().values(project_id="prj_other"))
    await main.run(settings(world), operation)
    assert (await outcome(world)).error["code"] == "not_found"


async def test_a_chore_that_kills_its_process_ends_as_poison(
    world: World, armed: ArmedFailpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_URL", "redis://127.0.0.1:1/0")
    from workers.chores import tasks

    await world.create()
    operation = await ask(world, {"checkpoint_id": "ckpt_none", "prompt": "1+1"})
    armed.arm(f"{main.TAKEN}=kill,times=*")
    for name, value in {**variables(world), **armed.environ}.items():
        monkeypatch.setenv(name, value)
    tasks.chore.run(operation)
    row = await outcome(world)
    assert (row.state, row.error["code"]) == ("failed", "poison")
    assert len(armed.fired()) == 3


async def test_an_ended_operation_is_left_alone(world: World) -> None:
    await world.create()
    operation = await ask(world, {}, "dance")
    await main.run(settings(world), operation)
    before = await outcome(world)
    assert await main.run(settings(world), operation) == 0
    assert (await outcome(world)).starts == before.starts
