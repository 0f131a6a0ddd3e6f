"""`venus up`, whole: real api, scheduler, workers, Postgres and Valkey, killed in every way."""

import json
import os
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from infra.process import identify, is_running
from supervisor.up import EXIT_LOCKED
from tests.support import requires, wait_until
from tests.support.installation import (
    ROOT,
    Installation,
    running_installation,
    start_installation,
)
from tests.support.services import folder_for_servers, migrated_cluster, running_broker

pytestmark = [pytest.mark.slow, requires("postgres", "valkey", "bwrap")]

CHILDREN = {
    "postgres",
    "valkey",
    "api",
    "scheduler-0",
    "worker-hosts",
    "worker-chores",
    "worker-plans",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Installation]:
    """One platform for the tests that leave it whole."""
    with running_installation() as running:
        yield running


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_everything_is_up_once_the_state_file_is_there(stack: Installation) -> None:
    assert set(stack.pids) == CHILDREN | {"supervisor"}
    assert answers(stack.api)
    assert stack.admin_key.startswith("vrl_")


def test_files_that_hold_the_key_are_private(stack: Installation) -> None:
    for name in ("up.json", "admin.key"):
        assert stat.S_IMODE((stack.home / name).stat().st_mode) == 0o600


def test_no_log_holds_the_key(stack: Installation) -> None:
    logs = [log for log in stack.home.glob("logs/*.log") if log.name != "up.log"]
    assert len(logs) >= len(CHILDREN)
    assert [log.name for log in logs if stack.admin_key in log.read_text()] == []


def test_a_second_supervisor_of_the_same_home_is_refused(stack: Installation) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "supervisor.up", "--home", str(stack.home)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == EXIT_LOCKED
    assert str(stack.process.pid) in done.stderr


@pytest.mark.parametrize("name", ["api", "scheduler-0", "worker-hosts", "valkey", "postgres"])
def test_a_killed_child_comes_back_at_the_same_address(stack: Installation, name: str) -> None:
    before, address = stack.pids[name], stack.api
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: stack.pids.get(name, before) != before, 60.0, stack.logs())
    wait_until(lambda: answers(address), 60.0, stack.logs())
    assert stack.api == address


def test_nobody_survives_a_killed_supervisor_and_the_home_starts_again() -> None:
    with folder_for_servers() as home:
        stack = start_installation(home)
        stack.await_ready()
        key, family = stack.admin_key, stack.family()
        stack.process.kill()
        stack.process.wait()
        wait_until(lambda: not any(map(is_running, family)), 30.0, "processes were left")
        again = start_installation(home)
        again.await_ready()
        assert again.admin_key == key
        assert again.stop() == 0
        assert not (home / "up.json").exists()


def test_given_servers_are_used_and_left_alone() -> None:
    with migrated_cluster() as cluster, running_broker() as broker:
        cluster.create_database("given")
        environ = {"DATABASE_URL": cluster.url("given"), "BROKER_URL": broker.url}
        with running_installation(environ) as stack:
            assert set(stack.pids) == CHILDREN - {"postgres", "valkey"} | {"supervisor"}
            assert stack.state["environ"]["DATABASE_URL"] == cluster.url("given")
        assert cluster.is_ready()
        assert broker.is_ready()


def test_stopping_during_the_start_leaves_nobody() -> None:
    with folder_for_servers() as home:
        stack = start_installation(home)
        wait_until(lambda: (home / "logs" / "api.log").exists(), 60.0, "the api was not started")
        family = stack.family()
        assert stack.stop() == 0
        wait_until(lambda: not any(map(is_running, family)), 20.0, "processes were left")
        assert identify(stack.process.pid) is None


def test_a_program_reads_one_record_once_all_is_up() -> None:
    with folder_for_servers() as home:
        command = [sys.executable, "-m", "supervisor.up", "--json", "--port", "0"]
        with subprocess.Popen(
            [*command, "--home", str(home)], cwd=ROOT, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                record = json.loads(process.stdout.readline())
                assert record["event"] == "ready"
                assert answers(record["url"])
                assert (home / "admin.key").samefile(record["key_file"])
                assert record["pids"]["supervisor"] == process.pid
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)
