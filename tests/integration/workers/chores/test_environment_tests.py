"""A test run in which a checkpoint answers, in the chore's own process."""

from sqlalchemy import insert

from environments.package import pack
from stores import tables as t
from tests.integration.environments.helpers import CALC
from tests.integration.workers.chores.test_generate import (
    ask,
    checkpointed,
    outcome,
    settings,
    world,
)
from tests.integration.workers.trainer.world import World
from tests.support.requirements import requires
from workers.chores import main

__all__ = ["world"]

pytestmark = requires("bwrap")


async def calc_version(world: World) -> str:
    """A version of calc in the world's project; its id."""
    blob = await world.blobs.create("environments/calc.tar.gz", pack(CALC))
    owner = {"organization_id": "org_t", "project_id": "prj_t"}
    async with world.database.begin() as connection:
        await connection.execute(insert(t.environment).values(id="env_c", name="calc", **owner))
        await connection.execute(
            insert(t.environment_version).values(
                id="ev_c",
                environment_id="env_c",
                version=1,
                content_sha="c",
                package_uri=blob.uri,
                package_sha=blob.sha,
                manifest={},
                state="ready",
            )
        )
    return "ev_c"


async def test_a_checkpoint_plays_tasks_of_a_split(world: World) -> None:
    checkpoint = await checkpointed(world)
    version = await calc_version(world)
    request = {
        "environment_version_id": version,
        "split": "test",
        "tasks": 2,
        "checkpoint": checkpoint,
        "max_tokens": 16,
    }
    operation = await ask(world, request, "test_environment")
    assert await main.run(settings(world), operation) == 0
    row = await outcome(world)
    assert (row.state, row.error) == ("done", None)
    assert (row.result["played"], row.result["findings"]) == (2, [])
    for one in row.result["cases"]:
        assert one["verdict"] == "passed"
        assert one["reward"] is not None
        assert one["turns"] >= 1
        assert one["end"]


async def test_a_checkpoint_that_is_gone_fails_the_operation(world: World) -> None:
    await checkpointed(world)
    version = await calc_version(world)
    request = {
        "environment_version_id": version,
        "split": "test",
        "tasks": 1,
        "checkpoint": "ckpt_none",
    }
    await main.run(settings(world), await ask(world, request, "test_environment"))
    row = await outcome(world)
    assert (row.state, row.error["code"]) == ("failed", "not_found")
