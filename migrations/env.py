"""Alembic's entry: runs revisions on the connection of `migrations.upgrade`, or on DATABASE_URL."""

import os

from alembic import context
from sqlalchemy import Connection, create_engine

from stores import asset_tables, secret_tables, tables
from stores.unit_of_work import sqlalchemy_url

for table in (asset_tables.model, secret_tables.secret):
    assert table.metadata is tables.metadata, "one metadata holds all tables"


def run(connection: Connection) -> None:
    """Run the revisions that were asked for, in one transaction."""
    context.configure(connection=connection, target_metadata=tables.metadata, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = create_engine(sqlalchemy_url(os.environ["DATABASE_URL"]))
    with engine.connect() as opened:
        run(opened)
        opened.commit()
