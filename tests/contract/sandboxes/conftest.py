"""Every runtime in turn; one more runtime is one more parameter."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.ports import Runtime
from tests.support.requirements import requires
from tests.support.sandboxes import native_runtime, process_runtime, qemu_runtime

RUNTIMES = (
    pytest.param("process", marks=requires("bwrap")),
    pytest.param("process-native-agent", marks=requires("bwrap", "compiler")),
    pytest.param("qemu", marks=(requires("qemu"), pytest.mark.slow)),
)
"""`process` with either of the two guest agents, which answer alike, and machines."""


@pytest.fixture(params=RUNTIMES)
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    """Each runtime in turn; its sandboxes are gone afterwards."""
    if request.param == "qemu":
        async with qemu_runtime() as machines:
            yield machines
    elif request.param == "process-native-agent":
        async with native_runtime(tmp_path) as made:
            yield made
    else:
        assert request.param == "process"
        async with process_runtime(tmp_path) as made:
            yield made
