"""Least squares that never says a negative cost."""

import math

import pytest

from simulation.fitting import Row, fit, log_spread


def rows(*values: tuple[float, float, float]) -> list[Row]:
    """Rows of two columns and a value."""
    return [Row((a, b), value, max(abs(value), 1.0)) for a, b, value in values]


def test_exact_values_give_their_coefficients() -> None:
    found = fit(rows((1, 10, 23), (2, 5, 16), (7, 1, 23)), 2)
    assert found == pytest.approx((3.0, 2.0))


def test_a_coefficient_below_zero_is_dropped_and_the_others_are_fitted_again() -> None:
    found = fit(rows((1, 1, 1), (2, 1, 3), (3, 1, 5)), 2)
    assert found[1] == 0.0
    assert found[0] > 0.0


def test_columns_that_say_the_same_share_no_coefficient() -> None:
    found = fit(rows((1, 2, 4), (2, 4, 8), (3, 6, 12)), 2)
    assert found == pytest.approx((4.0, 0.0))


def test_a_column_of_zeros_gets_no_coefficient() -> None:
    assert fit(rows((0, 1, 5), (0, 2, 10)), 2) == pytest.approx((0.0, 5.0))


def test_relative_errors_count_alike_for_short_and_long_turns() -> None:
    # Twice as long as modelled, once short and once long: neither pulls harder.
    found = fit([Row((1.0,), 2.0, 2.0), Row((1_000.0,), 1_000.0, 1_000.0)], 1)
    assert found[0] == pytest.approx(1.2)


def test_the_spread_is_that_of_the_logarithm() -> None:
    spread = log_spread([Row((1.0,), math.e, 1.0), Row((1.0,), 1 / math.e, 1.0)], (1.0,))
    assert spread == pytest.approx(1.0)
