"""Fixtures of the gateway's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api.world import Tenant, World, installation


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    """A gateway on a fresh database."""
    with installation(database_url, tmp_path / "home") as made:
        yield made


@pytest.fixture
def tenant(world: World) -> Tenant:
    """An organization with a project and a developer's key."""
    return world.tenant()
