"""Every runtime in turn; one more runtime is one more parameter."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.ports import Runtime
from tests.support.requirements import requires
from tests.support.sandboxes import native_runtime, process_runtime, qemu_runtime

RUNTIMES = (
    pytest.param("process", marks=requires("zygote")),
    pytest.param("process-bwrap", marks=requires("bwrap")),
    pytest.param("process-native-agent", marks=(requires("bwrap", "compiler"), pytest.mark.slow)),
    pytest.param("qemu", marks=(requires("qemu"), pytest.mark.slow)),
)
"""`process` forks from its zygote; `process-bwrap` is what it falls back to, also with the native guest
agent, which answers like the reference; and machines."""


@pytest.fixture(params=RUNTIMES)
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    """Each runtime in turn; its sandboxes are gone afterwards."""
    match request.param:
        case "qemu":
            async with qemu_runtime() as machines:
                yield machines
        case "process-native-agent":
            async with native_runtime(tmp_path) as native:
                yield native
        case _:
            assert request.param in ("process", "process-bwrap")
            async with process_runtime(tmp_path, is_warm=request.param == "process") as made:
                yield made
