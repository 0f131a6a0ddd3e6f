"""Every runtime in turn; one more runtime is one more parameter."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.ports import Runtime
from tests.support.requirements import requires
from tests.support.sandboxes import process_runtime

RUNTIMES = (
    pytest.param("process", marks=requires("zygote")),
    pytest.param("process-bwrap", marks=requires("bwrap")),
)
"""`process` forks from its zygote; `process-bwrap` is what it falls back to."""


@pytest.fixture(params=RUNTIMES)
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    """Each runtime in turn; its sandboxes are gone afterwards."""
    assert request.param in ("process", "process-bwrap")
    async with process_runtime(tmp_path, is_warm=request.param == "process") as made:
        yield made
