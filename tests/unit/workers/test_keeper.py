"""The keeper's watch: why a host ended."""

import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from infra.settings import Settings
from workers.keeper import Keeper


def test_a_host_that_died_before_a_renewal_reached_it_ended_with_its_own_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.from_env({"VENUS_HOME": str(tmp_path)})
    keeper = Keeper(settings, "host_x", 1)
    command = [sys.executable, "-c", "import os; os._exit(7)"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.wait()
    renewals = []

    def renew() -> tuple[str | None, bool]:
        renewals.append(1)
        # Only now is the end of its stream seen.
        threading.Thread(target=keeper._read_progress, args=(child,)).start()
        return "up", False

    monkeypatch.setattr(keeper, "_renew", renew)
    assert keeper._watch(child, time.monotonic()) == "the host exited with status 7"
    assert renewals
    with suppress(BrokenPipeError):
        child.stdin.close()  # What could not be written is still in its buffer.
    child.stdout.close()
