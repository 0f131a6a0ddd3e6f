"""The embedded servers: real binaries, started by our launcher, killed and started again."""

import os
import shutil
import signal
from pathlib import Path

import psycopg
import pytest

from supervisor.layout import Layout
from supervisor.postgres import ClusterVersionError, find_binaries, plan_cluster
from supervisor.processes import Service, Supervisor
from supervisor.valkey import plan_broker
from tests.support import eventually, requires
from tests.support.services import folder_for_servers

pytestmark = requires("postgres", "valkey")


async def test_a_killed_postgres_comes_back_with_its_data() -> None:
    with folder_for_servers() as folder:
        layout = Layout(folder).make()
        cluster = plan_cluster(layout)
        cluster.initialise()
        supervisor = Supervisor(layout.logs)
        await supervisor.start([Service(cluster.launch(), lambda _pid: cluster.is_ready())])
        cluster.create_database()
        with psycopg.connect(cluster.url()) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        first = supervisor.pids["postgres"]
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: supervisor.pids.get("postgres", first) != first, 30.0)
        await eventually(cluster.is_ready, 30.0)
        with psycopg.connect(cluster.url()) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
        await supervisor.stop()
        assert not cluster.is_ready()


def test_the_cluster_flushes_to_disk_and_listens_on_no_port() -> None:
    with folder_for_servers() as folder:
        command = " ".join(plan_cluster(Layout(folder).make()).launch().command)
    assert "fsync" not in command
    assert "listen_addresses= " in command


def test_initialise_repairs_a_start_that_was_killed_half_way() -> None:
    with folder_for_servers() as folder:
        cluster = plan_cluster(Layout(folder).make())
        cluster.initialise()
        half_made = cluster.data.with_name("data.making")
        cluster.data.rename(half_made)
        cluster.initialise()
        assert (cluster.data / "PG_VERSION").exists()
        assert not half_made.exists()


def test_a_cluster_of_another_version_is_refused_and_left_alone() -> None:
    with folder_for_servers() as folder:
        cluster = plan_cluster(Layout(folder).make())
        cluster.initialise()
        (cluster.data / "PG_VERSION").write_text("14\n")
        with pytest.raises(ClusterVersionError, match="14"):
            cluster.initialise()
        assert (cluster.data / "global").is_dir()


def test_a_private_virtual_environment_is_copied_for_the_account(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root drops to another account")
    with folder_for_servers() as folder:
        private = tmp_path / "private"
        private.mkdir(mode=0o700)
        install = find_binaries().folder.parent
        package = install.parent
        libraries = package.with_name(package.name + ".libs")
        for part in filter(Path.is_dir, (install, libraries)):
            shutil.copytree(part, private / part.relative_to(package.parent), symlinks=True)
        before = private.stat().st_mode
        binaries = private / package.name / install.name / "bin"
        cluster = plan_cluster(Layout(folder).make(), {"VENUS_POSTGRES_BIN": str(binaries)})
        cluster.initialise()
        assert private.stat().st_mode == before
        assert private not in cluster.binaries.folder.parents


def test_a_flushed_broker_still_answers() -> None:
    with folder_for_servers() as folder:
        broker = plan_broker(Layout(folder).make())
    assert broker.url.startswith("redis+socket:///")


def test_the_session_broker_can_be_emptied(broker_url: str) -> None:
    assert broker_url.endswith("valkey.sock")
