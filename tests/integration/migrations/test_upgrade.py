"""The schema history on a real Postgres: up, no drift from the tables, down, up again."""

from collections.abc import Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from migrations.head import head_revision
from migrations.upgrade import is_current, run_alembic, stored_revision, upgrade
from stores.tables import metadata
from stores.unit_of_work import sqlalchemy_url
from supervisor.postgres import Cluster
from tests.support import requires

pytestmark = requires("postgres")


@pytest.fixture
def empty_url(postgres_cluster: Cluster) -> Iterator[str]:
    postgres_cluster.create_database("empty")
    yield postgres_cluster.url("empty")
    postgres_cluster.drop_database("empty")


def test_an_empty_database_is_brought_to_the_head_and_then_left_alone(empty_url: str) -> None:
    assert stored_revision(empty_url) is None
    assert upgrade(empty_url)
    assert stored_revision(empty_url) == head_revision()
    assert not upgrade(empty_url)


def test_the_history_ends_in_the_tables_of_the_code(database_url: str) -> None:
    engine = create_engine(sqlalchemy_url(database_url), poolclass=NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, metadata)
    assert differences == [], "run `python -m migrations.revise`"


def test_every_revision_can_be_undone_and_done_again(database_url: str) -> None:
    run_alembic(database_url, "base")
    assert stored_revision(database_url) is None
    run_alembic(database_url, "head")
    assert is_current(database_url)
