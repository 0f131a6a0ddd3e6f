"""Children die with their parent; a reused pid is never mistaken for the process we knew."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from infra.process import (
    ProcessIdentity,
    die_with_parent,
    dying_with_parent,
    identify,
    is_running,
    open_pidfd,
    send_signal,
)
from tests.support import wait_until

ROOT = Path(__file__).parents[3]

PARENT = """
import subprocess, sys
from infra.process import die_with_parent, dying_with_parent
sleeper = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
if {wrapped!r}:
    child = subprocess.Popen(dying_with_parent(sleeper), stdout=subprocess.PIPE)
else:
    child = subprocess.Popen(sleeper, stdout=subprocess.PIPE, preexec_fn=die_with_parent())
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_child_dies_when_its_parent_is_killed(wrapped: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.format(wrapped=wrapped)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        child = identify(int(parent.stdout.readline()))
        assert child is not None
        assert is_running(child)
        parent.kill()
    wait_until(lambda: not is_running(child), 10.0)


def test_the_wrapper_becomes_the_command() -> None:
    command = dying_with_parent(["/bin/echo", "here"], signal.SIGTERM)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "here\n"


def test_a_child_of_a_parent_that_is_gone_does_not_start() -> None:
    command = list(dying_with_parent(["/bin/echo", "here"]))
    command[5] = "1"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_preexec_sets_the_signal_that_was_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "print('ran')"], preexec_fn=die_with_parent(signal.SIGTERM),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "ran\n"


def test_a_signal_reaches_exactly_the_process_that_was_identified() -> None:
    with sleeper() as process:
        identity = identify(process.pid)
        assert identity is not None
        assert send_signal(identity, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not send_signal(identity, signal.SIGKILL)


def test_a_reused_pid_is_not_signalled() -> None:
    myself = identify(os.getpid())
    assert myself is not None
    stranger = ProcessIdentity(os.getpid(), myself.start_ticks - 1)
    assert not is_running(stranger)
    assert open_pidfd(stranger) is None
    assert not send_signal(stranger, signal.SIGKILL)


def test_a_pid_that_became_the_number_of_a_thread_is_gone() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        assert open_pidfd(ProcessIdentity(thread.native_id, 1)) is None
        assert not send_signal(ProcessIdentity(thread.native_id, 1), signal.SIGKILL)
    finally:
        done.set()
        thread.join()


def test_a_zombie_is_not_running() -> None:
    process = sleeper()
    identity = identify(process.pid)
    assert identity is not None
    process.kill()
    wait_until(lambda: not is_running(identity))
    process.wait()
