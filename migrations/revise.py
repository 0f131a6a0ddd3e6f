"""Write a revision from the difference between `stores.tables` and the newest revision.

    python -m migrations.revise "what changed"
    python -m migrations.revise --amend      rewrite the newest revision (before it was released)

Runs on a throw-away Postgres, so that no developer's database decides what the revision says.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from migrations.head import VERSIONS, head_revision
from migrations.upgrade import SCRIPTS, run_alembic
from stores.unit_of_work import sqlalchemy_url
from supervisor.postgres import DATABASE, running_cluster


@contextmanager
def empty_database() -> Iterator[str]:
    """URL of an empty database on a server that lives as long as the block."""
    with tempfile.TemporaryDirectory(prefix="venus-revise-") as folder:
        Path(folder).chmod(0o755)
        with running_cluster(Path(folder), {"fsync": "off"}) as cluster:
            cluster.create_database()
            yield cluster.url(DATABASE)


def revise(message: str, number: int) -> Path:
    """Write `NNNN_message.py` and return its path."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    with empty_database() as url:
        if head_revision() is not None:
            run_alembic(url, "head")
        engine = create_engine(sqlalchemy_url(url), poolclass=NullPool)
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.revision(config, message, autogenerate=True, rev_id=f"{number:04d}")
    path = next(VERSIONS.glob(f"{number:04d}_*.py"))
    lines = [line for line in path.read_text().splitlines() if not line.strip().startswith("# ###")]
    path.write_text("\n".join(lines) + "\n")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(path)], check=True)
    return path


def main() -> int:
    """Command-line entry."""
    parser = argparse.ArgumentParser(prog="python -m migrations.revise", description=__doc__)
    parser.add_argument("message", nargs="?")
    parser.add_argument("--amend", action="store_true")
    arguments = parser.parse_args()
    newest = head_revision()
    number, message = int(newest or 0) + 1, arguments.message
    if arguments.amend and newest is not None:
        path = next(VERSIONS.glob(f"{newest}_*.py"))
        number, message = int(newest), message or path.stem.partition("_")[2].replace("_", " ")
        path.unlink()
    if not message:
        parser.error("say what changed")
    sys.stdout.write(f"{revise(message, number)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
