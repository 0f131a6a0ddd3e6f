"""Which held tries Postgres disowns."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from domain.ids import AttemptId, RolloutId, rollout_id
from domain.states import End
from sandboxes.node.registry import TryKey
from stores import tables as t
from stores.unit_of_work import Database
from tests.support.rows import ATTEMPT, Stored, insert_group, insert_job, spec_of
from workers.fleet.ownership import PostgresOwnership

pytestmark = pytest.mark.integration


async def orphans(
    database_url: str, table: Any = None, **change: Any
) -> tuple[list[str], list[str]]:
    """What is disowned of a held first try, second try and unknown try, and of the attempt."""
    database = Database(database_url)
    await insert_job(database, spec_of())
    member = Stored(End.DONE, try_=2)
    group = await insert_group(database, [member, member], is_open=True)
    if table is not None:
        async with database.begin() as connection:
            await connection.execute(update(table).values(**change))
    first = rollout_id(group, 0)
    held = {
        "earlier": TryKey(first, 1),
        "wanted": TryKey(first, 2),
        "later": TryKey(first, 3),
        "unknown": TryKey(RolloutId("ro_gone_000000000_000"), 1),
    }
    found = await PostgresOwnership(database).orphans(
        list(held.values()), [ATTEMPT, AttemptId("att_gone")]
    )
    await database.close()
    names = [name for name, key in held.items() if key in found.tries]
    return names, list(found.attempts)


async def test_tries_that_were_ended_or_deleted_have_no_owner(database_url: str) -> None:
    assert await orphans(database_url) == (["earlier", "unknown"], ["att_gone"])


@pytest.mark.parametrize("state", ["pausing", "resuming", "provisioning", "cancelling"])
async def test_a_job_that_is_on_its_way_keeps_its_tries(database_url: str, state: str) -> None:
    names, attempts = await orphans(database_url, t.job, state=state)
    assert (names, attempts) == (["earlier", "unknown"], ["att_gone"])


@pytest.mark.parametrize("state", ["paused", "cancelled"])
async def test_a_paused_or_cancelled_job_owns_nothing(database_url: str, state: str) -> None:
    names, attempts = await orphans(database_url, t.job, state=state)
    assert names == ["earlier", "wanted", "later", "unknown"]
    assert attempts == [ATTEMPT, "att_gone"]


async def test_an_ended_attempt_owns_nothing(database_url: str) -> None:
    names, attempts = await orphans(database_url, t.attempt, ended_at=t.attempt.c.created_at)
    assert names == ["earlier", "wanted", "later", "unknown"]
    assert attempts == [ATTEMPT, "att_gone"]


async def test_a_closed_rollout_owns_nothing(database_url: str, tmp_path: Path) -> None:
    names, attempts = await orphans(
        database_url, t.rollout, closed_at=t.rollout.c.created_at, end="done"
    )
    assert names == ["earlier", "wanted", "later", "unknown"]
    assert attempts == ["att_gone"]
