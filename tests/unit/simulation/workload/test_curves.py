"""Fitted distributions: curves, shifts to a total, correlated normals."""

from random import Random
from statistics import correlation

import pytest

from simulation.workload.curves import Curve, correlated, lower_triangle

CURVE = Curve((-1.0, 0.0, 2.0), (0.0, 10.0, 50.0))


def test_a_curve_is_straight_between_its_points_and_level_outside() -> None:
    assert [CURVE.at(score) for score in (-9, -1, -0.5, 0, 1, 2, 9)] == [0, 0, 5, 10, 30, 50, 50]


def test_points_at_the_same_score_are_a_jump() -> None:
    jump = Curve((0.0, 1.0, 1.0, 2.0), (0.0, 1.0, 5.0, 6.0))
    assert jump.at(0.999) == pytest.approx(1, abs=0.01)
    assert jump.at(1.0) == 5.0


def test_a_shift_makes_values_add_up_to_their_total() -> None:
    scores = [-0.7, 0.1, 0.4]
    shift = CURVE.shift_for(scores, 77.0)
    assert sum(CURVE.at(score + shift) for score in scores) == pytest.approx(77.0, rel=1e-3)


@pytest.mark.parametrize(("total", "nearest"), [(1e6, 150.0), (-1.0, 0.0)])
def test_a_total_out_of_reach_gives_the_nearest(total: float, nearest: float) -> None:
    scores = [-0.7, 0.1, 0.4]
    shift = CURVE.shift_for(scores, total)
    assert sum(CURVE.at(score + shift) for score in scores) == nearest


def test_the_factor_times_its_transpose_is_the_correlation() -> None:
    wanted = [[1.0, 0.8, -0.3], [0.8, 1.0, 0.1], [-0.3, 0.1, 1.0]]
    factor = [[*row, 0.0, 0.0][:3] for row in lower_triangle(wanted)]
    product = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in factor] for x in factor]
    for row, expected in zip(product, wanted, strict=True):
        assert row == pytest.approx(expected)


def test_drawn_normals_have_their_correlation() -> None:
    factor = lower_triangle([[1.0, 0.6], [0.6, 1.0]])
    chance = Random(3)
    drawn = [correlated(factor, [chance.gauss(0, 1) for _ in range(2)]) for _ in range(4_000)]
    assert correlation([a for a, _ in drawn], [b for _, b in drawn]) == pytest.approx(0.6, abs=0.03)


def test_an_impossible_correlation_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="not the correlation"):
        lower_triangle([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])
