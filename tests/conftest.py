"""Fixtures and hooks shared by all tests. Heavy servers start only when a test asks for them."""

import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from infra import failpoints as failpoint_module
from infra.clock import ManualClock
from tests.support.failpoints import ArmedFailpoints
from tests.support.requirements import enforce

if TYPE_CHECKING:
    from supervisor.postgres import Cluster
    from supervisor.valkey import Broker

os.environ["HF_HUB_OFFLINE"] = "1"
"""Read when `transformers` is first imported: no test, nor what it starts, asks a model hub."""

_database_numbers = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """Declare our marker here, beside the hook that gives it a meaning."""
    config.addinivalue_line("markers", "requires(*names): skip, or fail if demanded, without these")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Enforce `@requires`."""
    for mark in item.iter_markers("requires"):
        for capability in mark.args:
            enforce(capability)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Close with a table of what was skipped and why, so that no skip goes unseen."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[text.removeprefix("Skipped: ")] += 1
    if not reasons:
        return
    terminalreporter.section("skipped, by reason")
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count:5}  {reason}")


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves only when told."""
    return ManualClock()


@pytest.fixture
def armed(tmp_path: Path) -> Iterator[ArmedFailpoints]:
    """Failpoints for processes under test (`armed.environ`) and, once configured, for this one."""
    yield ArmedFailpoints(tmp_path / "failpoints")
    failpoint_module.configure("test", {})


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator["Cluster"]:
    """This test process's own running Postgres, with the migrated template in it."""
    enforce("postgres")
    from tests.support.services import migrated_cluster

    with migrated_cluster() as cluster:
        yield cluster


@pytest.fixture
def database_url(postgres_cluster: "Cluster") -> Iterator[str]:
    """URL of a fresh, migrated database that lives as long as the test."""
    from tests.support.services import TEMPLATE

    name = f"test_{next(_database_numbers)}"
    postgres_cluster.create_database(name, TEMPLATE)
    yield postgres_cluster.url(name)
    postgres_cluster.drop_database(name)


@pytest.fixture(scope="session")
def valkey_broker() -> Iterator["Broker"]:
    """This test process's own running Valkey."""
    enforce("valkey")
    from tests.support.services import running_broker

    with running_broker() as broker:
        yield broker


@pytest.fixture
def broker_url(valkey_broker: "Broker") -> str:
    """URL of an emptied broker."""
    valkey_broker.flush()
    return valkey_broker.url
