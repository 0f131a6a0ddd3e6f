"""One matrix a run, and its table at the end."""

from collections.abc import Iterator

import pytest

from tests.accept.recovery.cells import seed
from tests.accept.recovery.runner import Matrix

_matrix = Matrix()


@pytest.fixture(scope="session")
def matrix() -> Iterator[Matrix]:
    """The shared stack; it is stopped, and looked over, after the last cell."""
    yield _matrix
    _matrix.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a cell: failpoint, victim, seconds, result."""
    if not _matrix.outcomes:
        return
    terminalreporter.section(f"recovery matrix, drawn by {seed()[:12]}")
    for outcome in _matrix.outcomes:
        cell = outcome.cell
        what = f"{cell.strike.value} {cell.victim or ''}".strip()
        result = outcome.result.splitlines()[0][:60]
        terminalreporter.write_line(
            f"{cell.failpoint.name:32}  {what:36}  {outcome.seconds:6.1f} s  {result}"
        )
    total = sum(outcome.seconds for outcome in _matrix.outcomes)
    terminalreporter.write_line(f"{len(_matrix.outcomes)} cells in {total:.0f} s")
