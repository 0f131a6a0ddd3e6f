"""What a new leader makes of the rows."""

from domain.ids import EVALUATION_ORDINAL_BASE, REPEAT_SPAN
from scheduler.recovery import next_after


def test_the_next_ordinal_is_above_all_that_were_issued() -> None:
    assert next_after(0, ()) == 0
    assert next_after(5, (3, 4)) == 5
    assert next_after(5, (5, 9, 7)) == 10


def test_repeats_and_evaluations_do_not_move_the_next_ordinal() -> None:
    assert next_after(0, (4, REPEAT_SPAN + 3, EVALUATION_ORDINAL_BASE)) == 5
