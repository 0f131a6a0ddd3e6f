"""Fixtures of the rollout host's integration tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stores.blobs import Blobs
from stores.unit_of_work import Database
from tests.integration.workers.rollout.world import World


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """An attempt with a claimed engine lease and no group yet."""
    database = Database(database_url, 4)
    one = World(database, Blobs((tmp_path / "objects").as_uri()), tmp_path)
    await one.create()
    yield one
    await database.close()
