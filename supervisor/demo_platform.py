"""A platform for the demo: `venus up` as a child, awaited until ready, stopped in the end.

The child has a session of its own, so that Ctrl-C reaches it only through us, in order. It ends with
us however we end, unless it is to be kept.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from infra.process import dying_with_parent
from supervisor.probes import TREE
from supervisor.up import STATE_FILE

READY_WITHIN_S: Final = 240.0
"""A first start makes a database cluster and migrates it, on a machine that may be busy."""

STOP_WITHIN_S: Final = 90.0
"""Every child is given its own grace, in reverse order."""

POLL_S: Final = 0.05
"""Short against the start of the platform, which is measured."""

LOG_TAIL_BYTES: Final = 4000


class PlatformFailed(Exception):
    """`venus up` ended or did not become ready; the message holds the end of its output."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the platform is, and the key that may do everything."""

    api: str
    admin_key: str
    state_file: Path
    pid: int


class Platform:
    """`with Platform(home, is_kept) as platform: platform.wait()`."""

    def __init__(self, home: Path, is_kept: bool) -> None:
        self.home = home.absolute()
        self.is_kept = is_kept
        self.is_ready = False
        self._log = self.home / "logs" / "up.log"
        self._ready_file = self.home / "demo-ready.json"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Platform":
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        arguments = ["--home", str(self.home), "--ready-file", str(self._ready_file)]
        command: tuple[str, ...] = (sys.executable, "-m", "supervisor.up", *arguments)
        if not self.is_kept:
            command = dying_with_parent(command, signal.SIGTERM)
        self._log.unlink(missing_ok=True)
        # The output names the admin key.
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=TREE,
                env=_environ(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def wait(self) -> Address:
        """The address once everything is ready. Raises PlatformFailed."""
        assert self._process is not None, "entered"
        end = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < end:
            state = self._state()
            if state is not None:
                self.is_ready = True
                return Address(
                    api=state["api"],
                    admin_key=state["admin_key"],
                    state_file=self.home / STATE_FILE,
                    pid=state["pids"]["supervisor"],
                )
            if self._process.poll() is not None:
                raise PlatformFailed(f"the platform did not start:\n{self._tail()}")
            time.sleep(POLL_S)
        raise PlatformFailed(f"the platform is not ready in {READY_WITHIN_S} s:\n{self._tail()}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not (self.is_kept and self.is_ready):
            self.stop()
        self._ready_file.unlink(missing_ok=True)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what does not obey; children die with it either way."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _state(self) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = json.loads(self._ready_file.read_text())
        except FileNotFoundError:
            return None
        return state

    def _tail(self) -> str:
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip()


def _environ() -> Mapping[str, str]:
    """Ours, with the tree on the path whatever folder we were started in."""
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, (str(TREE), inherited)))
    return {**os.environ, "PYTHONPATH": path}
