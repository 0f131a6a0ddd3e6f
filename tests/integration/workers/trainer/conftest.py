"""Fixtures of the trainer's integration tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stores.blobs import Blobs
from stores.unit_of_work import Database
from tests.integration.workers.trainer.world import World


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """An empty database and object store; a test creates the attempt that it wants."""
    database = Database(database_url, 3)
    yield World(database, Blobs((tmp_path / "objects").as_uri()), tmp_path)
    await database.close()
