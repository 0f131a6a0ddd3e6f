"""Arithmetic of repetitions."""

import pytest

from benchmarks.engine.figures import Spread, hit_rate, ratios, spread
from benchmarks.engine.report import table


def test_a_spread_is_the_median_between_the_least_and_the_largest() -> None:
    assert spread([5.0, 1.0, 3.0]) == Spread(3.0, 1.0, 5.0, 3)
    assert spread([4.0, 1.0, 3.0, 2.0]).median == 2.5


def test_ratios_are_of_pairs_and_not_of_medians() -> None:
    # Of medians it would be 4 / 2: a load that comes and goes between pairs would decide.
    assert ratios([2.0, 4.0, 90.0], [1.0, 2.0, 30.0]) == Spread(2.0, 2.0, 3.0, 3)
    with pytest.raises(ValueError):
        ratios([1.0], [1.0, 2.0])


def test_a_hit_rate_counts_only_tokens_that_were_known() -> None:
    assert hit_rate(cached=90, recomputed=10) == 0.9
    assert hit_rate(cached=0, recomputed=7) == 0.0
    assert hit_rate(cached=0, recomputed=0) == 1.0


def test_columns_of_a_table_are_as_wide_as_their_widest_cell() -> None:
    text = table("Title", ("a", "long head"), [("wide cell", "1"), ("x", "2")])
    assert text.splitlines() == [
        "Title",
        "  a          long head",
        "  wide cell  1",
        "  x          2",
    ]
    assert spread([1234.5, 1000.0]).text(0) == "1,117 (1,000-1,234)"
