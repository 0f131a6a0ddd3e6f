"""What the short run of the scheduling benchmark holds of `venus` itself."""

import pytest

from benchmarks.schedule.cases import VENUS, Cell
from benchmarks.schedule.quick import SLOWEST, quick_cases, slower
from benchmarks.schedule.tables import table_of
from tests.unit.benchmarks.schedule.small import record

MID = Cell("mid", False)


@pytest.mark.parametrize(("over", "faults"), [(-0.001, 0), (0.001, 1)])
def test_a_change_that_makes_venus_slower_than_it_was_is_a_fault(over: float, faults: int) -> None:
    ratio = SLOWEST[MID] + over
    table = table_of([record(VENUS.name, ratio * 50.0), record("slime-sync published", 900.0)])
    assert len(slower(table)) == faults


def test_what_is_held_is_run() -> None:
    assert set(SLOWEST) <= {case.cell for case in quick_cases() if case.entry == VENUS}
    assert slower({}) == []
