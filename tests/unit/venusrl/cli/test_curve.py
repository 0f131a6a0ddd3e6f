"""Curves in block characters."""

import math

from hypothesis import given
from hypothesis import strategies as st

from venusrl.cli.curve import draw, sparkline

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=200)


def test_a_rising_curve_rises_from_the_lowest_to_the_highest_block() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 8) == "▁▂▃▄▅▆▇█"


def test_neighbours_are_averaged_where_there_is_no_room() -> None:
    assert sparkline([0.0, 0.0, 1.0, 1.0], 2) == "▁█"


def test_a_constant_curve_is_drawn_half_way_up() -> None:
    rows = draw([0.5] * 4, width=4, height=2)
    assert rows == ["0.50 ┤", "0.50 ┤████"]


def test_the_axis_names_the_highest_and_the_lowest_value() -> None:
    rows = draw([0.1, 0.9], width=10, height=3)
    assert (rows[0][:4], rows[-1][:4]) == ("0.90", "0.10")


def test_a_curve_without_points_says_so() -> None:
    assert draw([]) == draw([math.nan]) == ["(no points yet)"]


@given(VALUES, st.integers(1, 80), st.integers(1, 12))
def test_no_row_is_wider_than_asked_and_values_that_are_no_numbers_do_no_harm(
    values: list[float], width: int, height: int
) -> None:
    rows = draw(values, width, height)
    finite = [value for value in values if math.isfinite(value)]
    assert len(rows) == (height if finite else 1)
    assert all(len(row.partition("┤")[2]) <= width for row in rows)
    assert len(sparkline(values, width)) == min(width, len(finite))
