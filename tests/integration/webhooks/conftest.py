"""Fixtures of the webhooks' tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.api.world import World, installation
from tests.integration.webhooks.hooks import LOCAL, Project
from tests.support.webhook_receiver import Receiver, receiving


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    """A gateway that lets webhooks call this machine."""
    with installation(database_url, tmp_path / "home", VENUS_WEBHOOK_HOSTS=LOCAL) as made:
        yield made


@pytest.fixture
def project(world: World) -> Project:
    """A project with a job."""
    return Project.made(world)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that thanks."""
    with receiving() as made:
        yield made
