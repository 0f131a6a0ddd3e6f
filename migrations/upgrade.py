"""Bring a database to the newest revision: `python -m migrations.upgrade` (DATABASE_URL).

One query when it is there already. Otherwise Alembic runs under an advisory lock, so that two
starting installations do not migrate the same database at once.
"""

import os
import sys
from pathlib import Path
from typing import Final

import psycopg

from migrations.head import head_revision

SCRIPTS: Final = Path(__file__).parent

ADVISORY_LOCK: Final = 0x76656E75
"""Any constant that no other user of the database takes: "venu" in ASCII."""


def stored_revision(url: str) -> str | None:
    """The revision that the database is at; None when it was never migrated."""
    with psycopg.connect(url) as connection:
        known = connection.execute("SELECT to_regclass('alembic_version')").fetchone()
        if known is None or known[0] is None:
            return None
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(row[0]) if row else None


def is_current(url: str) -> bool:
    """Whether the database is at the newest revision."""
    return stored_revision(url) == head_revision()


def upgrade(url: str) -> bool:
    """Upgrade if needed; True when revisions were applied."""
    if is_current(url):
        return False
    run_alembic(url, "head")
    return True


def run_alembic(url: str, target: str) -> None:
    """Move the database to `target`, up or down, under the advisory lock."""
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    from stores.unit_of_work import sqlalchemy_url

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    engine = create_engine(sqlalchemy_url(url), poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        config.attributes["connection"] = connection
        is_down = target == "base" or target.startswith("-")
        (command.downgrade if is_down else command.upgrade)(config, target)


def main() -> int:
    """Command-line entry."""
    url = os.environ.get("DATABASE_URL", "")
    if not url:
        sys.stderr.write("DATABASE_URL is not set\n")
        return 2
    applied = upgrade(url)
    sys.stdout.write(f"{'upgraded to' if applied else 'already at'} {head_revision()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
