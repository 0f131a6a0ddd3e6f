"""How one child is started: a frozen description, and the function that makes it a process.

Children are spawned with `preexec_fn` from the main thread of a program with one thread (see
`infra.process`), get their own session so that a terminal's Ctrl-C reaches only the supervisor, and
write to one log file each.
"""

import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from infra.process import die_with_parent
from supervisor.account import Account

STOP_GRACE_S: Final = 10.0
"""How long a child may take to stop before it is killed."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One child: what to run, as whom, how to ask it to stop, and what it gets when we die."""

    name: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: Path = Path("/")
    account: Account | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL
    stop_grace_s: float = field(default=STOP_GRACE_S)


def spawn(launch: Launch, log: Path) -> subprocess.Popen[bytes]:
    """Start the child, its output appended to `log`. Raises OSError when it cannot be started."""
    switched = launch.account if launch.account and not launch.account.is_self else None
    with log.open("ab") as output:
        return subprocess.Popen(
            launch.command,
            cwd=launch.cwd,
            env=dict(launch.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=switched.uid if switched else None,
            group=switched.gid if switched else None,
            extra_groups=[] if switched else None,
            preexec_fn=die_with_parent(launch.death_signal),
        )


def stop(process: subprocess.Popen[bytes], launch: Launch) -> int:
    """Ask, wait for the grace time, then kill. Returns the exit status. Blocks."""
    if process.poll() is None:
        process.send_signal(launch.stop_signal)
    try:
        return process.wait(launch.stop_grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
