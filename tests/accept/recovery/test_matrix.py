"""Every cell of this run ends with a job that succeeded and a ledger that adds up."""

from collections.abc import Callable

import pytest

from tests.accept.recovery.cells import Cell, drawn_cells
from tests.accept.recovery.runner import Matrix
from tests.support import requires

pytestmark = [
    pytest.mark.accept,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]


@pytest.mark.parametrize("cell", drawn_cells(), ids=lambda cell: cell.name)
def test_a_job_ends_whole_whatever_strikes(
    matrix: Matrix, cell: Cell, record_property: Callable[[str, object], None]
) -> None:
    matrix.run(cell, record_property)
