"""`make demo`: bring the platform up, run `scripts/demo.py` against it, take it down again.

A platform that is already up in this home is used and left alone. With `KEEP=1` the one started
here outlives us. The exit status is that of the demo.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra.process import die_with_parent
from infra.settings import Settings
from supervisor.layout import Layout
from supervisor.processes import say, tail
from supervisor.services import TREE
from supervisor.up import STATE_FILE, AlreadyUpError, holding_lock

DEMO: Final = TREE / "scripts" / "demo.py"

READY_WITHIN_S: Final = 180.0
"""Covers a first start on a slow, busy machine; a usual one takes a few seconds."""

STOP_WITHIN_S: Final = 60.0
"""More than the sum of the grace times of `venus up`."""

INTERRUPTED_S: Final = 2.0
"""How long an interrupted demo may take to end by itself."""

POLL_S: Final = 0.1


class DemoError(RuntimeError):
    """The platform could not be brought up; the message says why."""


@dataclass(frozen=True, slots=True)
class Running:
    """A platform that is up, and its supervisor if we started it."""

    state: Mapping[str, Any]
    started: subprocess.Popen[bytes] | None


def is_held(layout: Layout) -> bool:
    """Whether a supervisor holds this home now."""
    try:
        with holding_lock(layout):
            return False
    except AlreadyUpError:
        return True


def bring_up(layout: Layout, is_kept: bool) -> Running:
    """The platform of this home, started if it is not running."""
    if is_held(layout):
        say(f"using the platform that is up in {layout.home}")
        return Running(wait_for_state(layout, None), None)
    log = layout.logs / "up.log"
    log.unlink(missing_ok=True)
    say(f"starting the platform in {layout.home}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor.up", "--home", str(layout.home)],
            cwd=TREE,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=None if is_kept else die_with_parent(signal.SIGTERM),
        )
    try:
        return Running(wait_for_state(layout, process), process)
    except BaseException:
        take_down(process)
        raise


def wait_for_state(layout: Layout, process: subprocess.Popen[bytes] | None) -> Mapping[str, Any]:
    """The content of the state file once it is there."""
    file, deadline = layout.home / STATE_FILE, time.monotonic() + READY_WITHIN_S
    while not file.exists():
        if process is not None and process.poll() is not None:
            raise DemoError(f"the platform did not come up:\n{tail(layout.logs / 'up.log')}")
        if time.monotonic() > deadline:
            raise DemoError(f"the platform is not ready after {READY_WITHIN_S:.0f} s")
        time.sleep(POLL_S)
    state: Mapping[str, Any] = json.loads(file.read_text())
    return state


def take_down(process: subprocess.Popen[bytes]) -> None:
    """Stop the supervisor, which stops everything else."""
    process.terminate()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_demo(state: Mapping[str, Any]) -> int:
    """Exit status of the demo against this platform."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(TREE), os.environ.get("PYTHONPATH", "")))),
        "VENUS_API_URL": state["api"],
        "VENUS_API_KEY": state["admin_key"],
        "VENUS_HOME": state["home"],
    }
    with subprocess.Popen([sys.executable, str(DEMO)], cwd=TREE, env=environ) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            return end_interrupted(process)


def end_interrupted(process: subprocess.Popen[bytes]) -> int:
    """A terminal's Ctrl-C reached the demo as well; a SIGTERM reached only us."""
    try:
        return process.wait(INTERRUPTED_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        return process.wait()


def main() -> int:
    """Command-line entry."""
    is_kept = os.environ.get("KEEP", "") not in ("", "0")
    layout = Layout(Settings.from_env().home).make()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        running = bring_up(layout, is_kept)
    except DemoError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    status = 1
    try:
        status = run_demo(running.state)
    finally:
        if running.started is not None and not is_kept:
            say("stopping the platform")
            take_down(running.started)
        else:
            supervisor = running.state["pids"]["supervisor"]
            say(f"still up at {running.state['api']}; stop it with `kill {supervisor}`")
            say(f"admin key: {running.state['admin_key']}")
    return status


if __name__ == "__main__":
    sys.exit(main())
