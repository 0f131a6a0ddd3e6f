"""`venus up` in a process, for tests of the supervisor itself; jobs are tested on `support.stack`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.process import ProcessIdentity, identify, is_running
from supervisor.processes import tail
from tests.support.services import folder_for_servers
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]

READY_WITHIN_S: Final = 120.0
STOP_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Installation:
    """A platform that was started for a test."""

    home: Path
    process: subprocess.Popen[bytes]

    @property
    def is_up(self) -> bool:
        """Whether everything is ready; a file that a killed predecessor left says nothing."""
        file = self.home / "up.json"
        return file.exists() and self.pids["supervisor"] == self.process.pid

    @property
    def state(self) -> Mapping[str, Any]:
        """The content of `up.json` now."""
        state: Mapping[str, Any] = json.loads((self.home / "up.json").read_text())
        return state

    @property
    def api(self) -> str:
        """Address of the API."""
        return str(self.state["api"])

    @property
    def admin_key(self) -> str:
        """The bootstrap key."""
        return str(self.state["admin_key"])

    @property
    def pids(self) -> Mapping[str, int]:
        """Pid by child, `supervisor` among them."""
        pids: Mapping[str, int] = self.state["pids"]
        return pids

    def family(self) -> list[ProcessIdentity]:
        """The supervisor and every process below it, however deep."""
        pids = [self.process.pid, *descendants(self.process.pid)]
        return [identity for pid in pids if (identity := identify(pid)) is not None]

    def logs(self) -> str:
        """The end of every log, for a failure's message."""
        return "\n".join(f"== {log}\n{tail(log)}" for log in sorted(self.home.glob("logs/*.log")))

    def await_ready(self) -> None:
        """Wait until everything is ready; fails with the logs."""

        def ready_or_ended() -> bool:
            return self.is_up or self.process.poll() is not None

        wait_until(ready_or_ended, READY_WITHIN_S)
        assert self.is_up, f"ended with {self.process.poll()}\n{self.logs()}"

    def stop(self) -> int:
        """Ask the supervisor to stop; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def descendants(pid: int) -> list[int]:
    """Pids of all processes below this one now."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(folder.name)] = int(fields[1])
    found: list[int] = []
    below = {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        found += sorted(below)
    return found


def start_installation(home: Path, environ: Mapping[str, str] | None = None) -> Installation:
    """Begin to start a platform in `home`, on any free port."""
    (home / "logs").mkdir(parents=True, exist_ok=True)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "BROKER_URL", "OBJECT_STORE_URL", "VENUS_HOME")
    }
    with (home / "logs" / "up.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor.up", "--home", str(home), "--port", "0"],
            cwd=ROOT,
            env={**inherited, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Installation(home, process)


@contextmanager
def running_installation(environ: Mapping[str, str] | None = None) -> Iterator[Installation]:
    """A ready platform in a home of its own; stopped at the end, and nothing of it may be left."""
    with folder_for_servers() as home:
        installation = start_installation(home, environ)
        try:
            installation.await_ready()
            yield installation
        finally:
            is_running_still = installation.process.poll() is None
            family = installation.family() if is_running_still else []
            installation.stop()
            wait_until(lambda: not any(map(is_running, family)), 20.0, "processes were left")
