"""One running platform for this folder: room for several small jobs at once, scripts per attempt."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.faults.jobs import CHAOS, Platform
from tests.support.stack import StackPlan, running_stack

ROOM = {
    "VENUS_POOL_TRAINERS": "4",
    "VENUS_POOL_ENGINES": "4",
    "VENUS_POOL_SPARE_CHILDREN": "3",
    "VENUS_REQUEST_BYTES": str(256 * 1024),
    # Judges of these tests listen on the loopback.
    "VENUS_JUDGE_HOSTS": "127.0.0.1",
}
"""Four jobs at once, so that the time of a job's start is spent once and not per job."""


@pytest.fixture(scope="package")
def platform() -> Iterator[Platform]:
    """The platform of this folder. Nothing may be left of it at the end."""
    with tempfile.TemporaryDirectory(prefix="venus-scripts-") as scripts:
        environ = {"VENUS_ENGINE": "scripted", "VENUS_ENGINE_SCRIPT": scripts}
        with running_stack(StackPlan(environ={**ROOM, **environ})) as stack:
            stack.client.environments.push(CHAOS)
            yield Platform(stack, Path(scripts))
