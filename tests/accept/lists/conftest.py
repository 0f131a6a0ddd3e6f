"""One filled installation for all tests of this folder."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.postgres import Cluster
from tests.accept.lists.fill import ROLLOUTS, fill
from tests.accept.lists.measured import Lists
from tests.integration.api.world import installation
from tests.support.services import TEMPLATE, migrated_cluster


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Cluster]:
    """A server on a disk: a million rollouts are no matter of memory, and times are measured."""
    with migrated_cluster(is_measured=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def lists(postgres_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lists]:
    """A job with a million rollouts."""
    postgres_cluster.create_database("lists", TEMPLATE)
    url = postgres_cluster.url("lists")
    home: Path = tmp_path_factory.mktemp("lists")
    with installation(url, home) as world:
        tenant = world.tenant()
        job = tenant.ended()
        started = time.perf_counter()
        fill(url, job["id"], job["attempt_id"], tenant.organization_id)
        sys.stdout.write(f"\n{ROLLOUTS} rollouts in {time.perf_counter() - started:.1f} s\n")
        yield Lists(tenant, url, job)
    postgres_cluster.drop_database("lists")
