"""A database of its own for each test, and the session that a keeper would have beside it."""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from stores.unit_of_work import Database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The pool of a process of the control plane."""
    database = Database(database_url, 2)
    yield database
    await database.close()


@pytest.fixture
def keeper(database_url: str) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    """A session of its own, as a keeper has."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection
