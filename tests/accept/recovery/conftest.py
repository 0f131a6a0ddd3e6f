"""One matrix for each test process, and one table of all cells at the end."""

from collections.abc import Iterator

import pytest

from tests.accept.recovery.cells import seed
from tests.accept.recovery.runner import CELL_PROPERTY, HELD, Matrix


@pytest.fixture(scope="session")
def matrix() -> Iterator[Matrix]:
    """The shared stack; it is stopped, and looked over, after the last cell."""
    made = Matrix()
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a cell: failpoint, strike and victim, seconds, result."""
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.getreports(kind)]
    rows = [row for one in reports for name, row in one.user_properties if name == CELL_PROPERTY]
    if not rows:
        return
    terminalreporter.section(f"recovery matrix, drawn by {seed()[:12]}")
    for failpoint, what, seconds, result in sorted(rows):
        terminalreporter.write_line(f"{failpoint:32}  {what:36}  {seconds:6.1f} s  {result}")
    total = sum(seconds for _, _, seconds, _ in rows)
    held = sum(result == HELD for _, _, _, result in rows)
    terminalreporter.write_line(f"{held} of {len(rows)} cells held, {total:.0f} s of cells")
