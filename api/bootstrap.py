"""`python -m api.bootstrap --print`: the installation's admin key, made once, kept in the home.

The secret lies in `admin.key` (mode 0600) of VENUS_HOME; the database holds its hash. Another home
on the same database makes another admin key.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from api.auth.keys import new_secret, secret_hash, shown_prefix
from infra.ids import IdSource
from infra.key_files import make_once
from infra.settings import Settings
from stores import keys
from stores.unit_of_work import Database

KEY_FILE = "admin.key"


def kept_secret(home: Path) -> str:
    """The secret of this home, made at the first call."""
    path = home / KEY_FILE
    make_once(path, new_secret())
    return path.read_text().strip()


async def ensure(settings: Settings) -> str:
    """Make sure that the key of this home is known to the database; returns the secret."""
    secret = kept_secret(settings.home)
    database = Database(settings.database_url)
    try:
        async with database.begin() as connection:
            if not await keys.bootstrap_exists(connection, secret_hash(secret)):
                await keys.create(
                    connection,
                    id=IdSource().new("key"),
                    organization_id=None,
                    project_id=None,
                    name="bootstrap admin",
                    role="owner",
                    prefix=shown_prefix(secret),
                    secret_hash=secret_hash(secret),
                )
    finally:
        await database.close()
    return secret


def main() -> None:
    """Command-line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the secret")
    arguments = parser.parse_args()
    secret = asyncio.run(ensure(Settings.from_env()))
    if arguments.print:
        sys.stdout.write(secret + "\n")


if __name__ == "__main__":
    main()
