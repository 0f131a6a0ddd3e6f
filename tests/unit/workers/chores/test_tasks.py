"""Webhooks never hold up chores: their process is started and not waited for, one at a time."""

import subprocess
import sys

import pytest

from tests.support.waiting import wait_until
from workers.chores import tasks

SLEEPS = (sys.executable, "-c", "import sys; sys.stdin.read()")


def test_one_sender_runs_at_a_time_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(module: str, *arguments: str) -> "subprocess.Popen[bytes]":
        assert (module, arguments) == ("workers.webhooks.main", ())
        started.append(subprocess.Popen(SLEEPS, stdin=subprocess.PIPE, start_new_session=True))
        return started[-1]

    monkeypatch.setattr(tasks, "_started", start)
    monkeypatch.setattr(tasks, "_senders", [])
    try:
        tasks.deliver()
        tasks.deliver()
        assert len(started) == 1
        started[0].communicate(b"")
        tasks.deliver()
        assert len(started) == 2
        monkeypatch.setattr(tasks, "CHORE_DEADLINE_S", 0.0)
        tasks.deliver()
        wait_until(lambda: started[1].poll() is not None, 5.0, "a stuck sender goes on")
        assert len(started) == 3
    finally:
        for one in started:
            one.kill()
            one.communicate()
