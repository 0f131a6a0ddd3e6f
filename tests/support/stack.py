"""A whole stack for tests: `supervisor.up` in a home of its own, fast intervals, failpoints allowed.

    with running_stack(StackPlan(schedulers=2)) as stack:
        job = stack.client.jobs.create(spec)

When the block ends everything is stopped, and nothing of it may be left: no process that was ever
seen below the supervisor, none that names the home.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import psycopg

from infra.process import ProcessIdentity, dying_with_parent
from infra.settings import FAST_INTERVALS, INTERVAL_VARIABLES, VARIABLES
from tests.support import processes
from tests.support.failpoints import ArmedFailpoints
from tests.support.folders import quick_folder
from tests.support.processes import Process
from tests.support.waiting import look_again, wait_until
from venusrl.client import Client, Waiting

TREE: Final = Path(__file__).resolve().parents[2]
CALC: Final = TREE / "environments" / "builtin" / "calc"
DIARY: Final = TREE / "tests" / "support" / "diary"

READY_WITHIN_S: Final = 120.0
"""Postgres, migrations and five Python processes on two busy cores."""

STOP_WITHIN_S: Final = 60.0
GONE_WITHIN_S: Final = 20.0
"""Hosts whose keeper was killed end with it; sandboxes end with their host."""

SESSIONS: Final = """
select pid, state, wait_event_type, wait_event, pg_blocking_pids(pid) as waits_for,
       date_trunc('milliseconds', now() - state_change) as since, left(query, 200)
from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
order by state, pid
"""

LOG_TAIL_BYTES: Final = 5000

QUICK_PROGRESS: Final = {"VENUS_PROGRESS_DECODE_S": "8", "VENUS_PROGRESS_SYNC_S": "30"}
"""A stopped host is found soon, yet an engine gets 12 s for its first weights, on crowded cores."""


@dataclass(frozen=True, slots=True)
class StackPlan:
    """What differs between stacks."""

    schedulers: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)

    def environ_in(self, home: Path) -> dict[str, str]:
        """All variables of the supervisor; no setting of the tests' own process leaks in."""
        kept = {name: text for name, text in os.environ.items() if name not in VARIABLES}
        intervals = {
            variable: str(getattr(FAST_INTERVALS, name))
            for variable, name in INTERVAL_VARIABLES.items()
        }
        return {
            **kept,
            **intervals,
            **QUICK_PROGRESS,
            "VENUS_HOME": str(home),
            "VENUS_API_PORT": "0",
            "VENUS_SCHEDULERS": str(self.schedulers),
            "VENUS_CHECK_INVARIANTS": "1",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
            **ArmedFailpoints(home / "failpoints").environ,
            **self.environ,
        }


class Stack:
    """One running installation. Made by `running_stack`."""

    def __init__(self, plan: StackPlan, home: Path) -> None:
        self.plan = plan
        self.home = home
        self.failpoints = ArmedFailpoints(home / "failpoints")
        self.client: Client
        """A developer of a project that has the `calc` and the `diary` environment."""
        self.admin: Client
        self._clients: list[Client] = []
        self._seen: dict[ProcessIdentity, Process] = {}
        self._ready_file = home / "ready.json"
        with (home / "up.log").open("ab") as log:
            self._process = subprocess.Popen(
                # A test run that is killed must not leave a platform behind.
                dying_with_parent(
                    (sys.executable, "-m", "supervisor.up", "--ready-file", str(self._ready_file)),
                    signal.SIGTERM,
                ),
                cwd=TREE,
                env=plan.environ_in(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def supervisor(self) -> int:
        """Pid of `supervisor.up`."""
        return self._process.pid

    @property
    def state(self) -> dict[str, Any]:
        """What the ready file says now."""
        state: dict[str, Any] = json.loads(self._ready_file.read_text())
        return state

    @property
    def database_url(self) -> str:
        """URL of the stack's database."""
        return str(self.state["environ"]["DATABASE_URL"])

    @property
    def object_store_url(self) -> str:
        """URL of the stack's object store."""
        return str(self.state["environ"]["OBJECT_STORE_URL"])

    def wait_ready(self) -> None:
        """Until everything serves and the tenant is made."""

        def is_ready() -> bool:
            assert self._process.poll() is None, f"the stack did not start:\n{self.up_log()}"
            return self._ready_file.exists()

        wait_until(is_ready, READY_WITHIN_S, f"the stack is not ready: {self.home}")
        self.admin = self._dial(self.state["admin_key"])
        organization = self.admin.organizations.create("tests")
        project = self.admin.projects.create("tests", organization.id)
        self.client = self._dial(self.admin.keys.create("tests", project.id).secret)
        environments = self.client.environments
        for version in [environments.push(package, wait_s=None) for package in (CALC, DIARY)]:
            environments.wait(version)

    def _dial(self, key: str) -> Client:
        client = Client(self.state["api"], key, waiting=Waiting(sleep=look_again))
        self._clients.append(client)
        return client

    # Processes.

    def processes(self) -> list[Process]:
        """All descendants of the supervisor now; they stay on record for the check at the end."""
        if self._process.poll() is not None:
            return []
        found = processes.descendants(self.supervisor)
        self._seen.update((process.identity, process) for process in found)
        return found

    def hosts(self, kind: str) -> list[Process]:
        """Host processes of a kind."""
        return processes.hosts(self.processes(), kind)

    def leader(self) -> Process | None:
        """The scheduler that listens at the address in `leadership`, if one does."""
        rows = self.query("select address from leadership where address <> ''")
        if not rows:
            return None
        port = int(str(rows[0][0]).rpartition(":")[2])
        found = processes.of_kind(self.processes(), processes.SCHEDULER_MARK)
        return next((one for one in found if port in _listening(one.pid)), None)

    def named(self, name: str) -> Process | None:
        """A direct child of the supervisor by the name that the ready file gives it."""
        pid = self.state["pids"].get(name)
        return next((one for one in self.processes() if one.pid == pid), None)

    # Servers.

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of a statement on the stack's database."""
        with psycopg.connect(self.database_url, autocommit=True, connect_timeout=5) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def sessions(self) -> str:
        """What the database's sessions do and whom each waits for; for a failure's message."""
        try:
            rows = self.query(SESSIONS)
        except psycopg.Error as error:
            return f"the database does not answer: {error}"
        return "\n".join(" | ".join(map(str, row)) for row in rows)

    def flush_broker(self) -> None:
        """Forget every message, as a lost broker would."""
        path = str(self.state["environ"]["BROKER_URL"]).removeprefix("redis+socket://")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5.0)
            connection.connect(path)
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(16).startswith(b"+OK")

    # Logs.

    def log_marks(self) -> dict[Path, int]:
        """Where every log ends now."""
        return {log: log.stat().st_size for log in sorted((self.home / "logs").glob("*.log"))}

    def logs_since(self, marks: Mapping[Path, int]) -> str:
        """What every log got since then, cut to the end of it."""
        parts = [
            f"home: {self.home}",
            f"sessions:\n{self.sessions()}",
            f"up.log:\n{self.up_log()}",
        ]
        for log in self.log_marks():
            with log.open("rb") as stream:
                size = log.stat().st_size
                stream.seek(max(marks.get(log, 0), size - LOG_TAIL_BYTES))
                parts.append(f"---- {log.name}\n{stream.read().decode(errors='replace')}")
        return "\n".join(parts)

    def up_log(self) -> str:
        """The end of what the supervisor said."""
        return (self.home / "up.log").read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    # The end.

    def stop(self) -> None:
        """Stop everything by SIGTERM to the supervisor and assert that nothing is left."""
        self.processes()
        self._close_clients()
        self._process.terminate()
        try:
            self._process.wait(STOP_WITHIN_S)
        finally:
            self._process.kill()
            self._process.wait()
        assert self._process.returncode == 0, f"the supervisor failed:\n{self.up_log()}"
        try:
            wait_until(lambda: not self.leftovers(), GONE_WITHIN_S)
        except AssertionError:
            raise AssertionError(f"left over: {self.leftovers()}") from None

    def leftovers(self) -> list[Process]:
        """Processes of this stack that still run: any that was ever seen, any that names it."""
        seen = [process for process in self._seen.values() if process.is_alive]
        return [*seen, *(one for one in processes.naming(str(self.home)) if one not in seen)]

    def abandon(self) -> None:
        """End whatever is left of ours, after a failure, so that the next stack runs alone."""
        self.processes()
        self._close_clients()
        self._process.kill()
        self._process.wait()
        for process in self._seen.values():
            process.send(signal.SIGCONT)
            process.send(signal.SIGKILL)

    def _close_clients(self) -> None:
        for client in self._clients:
            client.close()


def _listening(pid: int) -> set[int]:
    """Ports at which a process accepts connections."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return set()
    return {int(one.laddr.port) for one in connections if one.status == psutil.CONN_LISTEN}


def start_stack(plan: StackPlan | None = None) -> Stack:
    """A ready stack in a new home; the caller stops it and removes the home."""
    home = quick_folder("venus-s-")
    stack = Stack(plan or StackPlan(), home)
    try:
        stack.wait_ready()
    except BaseException:
        stack.abandon()
        raise
    return stack


@contextmanager
def running_stack(plan: StackPlan | None = None) -> Iterator[Stack]:
    """A ready stack for the length of a block. Its home is kept when it did not stop cleanly."""
    stack = start_stack(plan)
    try:
        yield stack
        stack.stop()
    finally:
        stack.abandon()
    shutil.rmtree(stack.home, ignore_errors=True)
