"""Real Postgres and Valkey for tests: one server of each per test process, one database per test.

Servers start when the first test of the process asks for one, on sockets in a folder of their own.
A test's database is a copy of a template that was migrated once.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from migrations.upgrade import upgrade
from supervisor.launch import spawn, stop
from supervisor.layout import Layout
from supervisor.postgres import Cluster, running_cluster
from supervisor.valkey import Broker, plan_broker
from tests.support.folders import disk_folder, quick_folder
from tests.support.waiting import wait_until

TEMPLATE: Final = "venus_template"

TEST_SETTINGS: Final[Mapping[str, str]] = {"fsync": "off", "full_page_writes": "off"}
"""Lost only with the machine's power, never by a killed server: what tests kill is the process."""


@contextmanager
def folder_for_servers(is_measured: bool = False) -> Iterator[Path]:
    """A short, walkable temporary folder; on a disk, as users have it, where times are measured."""
    folder = disk_folder("venus-t-") if is_measured else quick_folder("venus-t-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def migrated_cluster(is_measured: bool = False) -> Iterator[Cluster]:
    """A running server that holds the migrated template."""
    with (
        folder_for_servers(is_measured) as folder,
        running_cluster(folder, TEST_SETTINGS) as cluster,
    ):
        cluster.create_database(TEMPLATE)
        upgrade(cluster.url(TEMPLATE))
        yield cluster


@contextmanager
def running_broker() -> Iterator[Broker]:
    """A running Valkey."""
    with folder_for_servers() as folder:
        layout = Layout(folder).make()
        broker = plan_broker(layout)
        broker.initialise()
        launch, log = broker.launch(), layout.logs / "valkey.log"
        process = spawn(launch, log)
        try:
            wait_until(broker.is_ready, 20.0, f"valkey did not start: {log}")
            yield broker
        finally:
            stop(process, launch)
