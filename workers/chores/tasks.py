"""The Celery side of chores: late-acked tasks that run what is due in processes of their own.

Lost, late and duplicate messages are harmless: the row says whether there is work, and its first
end wins.
"""

import os
import signal
import subprocess
import sys
import time
from typing import Final

from infra.logging import configure, get_logger
from infra.names import CHORE_TASK, DELIVER_TASK, PLAN_TASK, TIDY_TASK
from infra.process import dying_with_parent
from infra.settings import Settings
from stores.system.operations import STARTS_MAX
from workers.app import app

CHORE_DEADLINE_S: Final = 300.0
"""Longest run of one start; far above any chore, far below the broker's visibility timeout."""

_senders: "list[tuple[subprocess.Popen[bytes], float]]" = []
"""The process that delivers and when it began, if one was started."""


@app.task(name=CHORE_TASK, acks_late=True, ignore_result=True)  # type: ignore[untyped-decorator]
def chore(operation_id: str) -> None:
    """Run the operation until its process ends well; its row bounds the starts."""
    configure("chores", Settings.from_env().log_level)
    _run_to_its_end(operation_id)


@app.task(name=PLAN_TASK, acks_late=True, ignore_result=True)  # type: ignore[untyped-decorator]
def plan(operation_id: str) -> None:
    """The same for a plan. Its queue has a worker of its own: minutes of CPU hold up no chore."""
    configure("plans", Settings.from_env().log_level)
    _run_to_its_end(operation_id)


def _run_to_its_end(operation_id: str) -> None:
    for _ in range(STARTS_MAX + 1):
        status = run_once(operation_id)
        if status == 0:
            return
        get_logger().warning("chore.ended", operation_id=operation_id, status=status)


@app.task(name=DELIVER_TASK, acks_late=True, ignore_result=True)  # type: ignore[untyped-decorator]
def deliver() -> None:
    """Have webhooks delivered by a process of its own, which this worker's child does not wait for.

    Slow receivers hold up no chore. One such process runs at a time, and it ends with this child;
    whatever it leaves, the leader wakes another for.
    """
    configure("chores", Settings.from_env().log_level)
    if _senders:
        former, began = _senders[0]
        if former.poll() is None and time.monotonic() - began < CHORE_DEADLINE_S:
            return
        _senders.clear()
        if former.poll() is None:
            os.killpg(former.pid, signal.SIGKILL)
        if (status := former.wait()) != 0:
            get_logger().warning("deliver.ended", status=status)
    _senders.append((_started("workers.webhooks.main"), time.monotonic()))


@app.task(name=TIDY_TASK, acks_late=True, ignore_result=True)  # type: ignore[untyped-decorator]
def tidy() -> None:
    """Delete what is past its age in the event log; what a failed run leaves, the next one finds."""
    configure("chores", Settings.from_env().log_level)
    _run("workers.chores.tidy")


def run_once(operation_id: str) -> int:
    """One start; the exit status, or -9 when it ran past its deadline."""
    return _run("workers.chores.main", operation_id)


def _started(module: str, *arguments: str) -> "subprocess.Popen[bytes]":
    command = dying_with_parent((sys.executable, "-m", module, *arguments))
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


def _run(module: str, *arguments: str) -> int:
    process = _started(module, *arguments)
    try:
        return process.wait(CHORE_DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()
