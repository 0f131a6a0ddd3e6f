"""One stack for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.support.stack import Stack, running_stack


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    """A running platform; that nothing of it is left at the end is asserted, too."""
    with running_stack() as stack:
        yield stack
