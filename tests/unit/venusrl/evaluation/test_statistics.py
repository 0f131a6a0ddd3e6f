"""pass@k against enumeration, and an interval that a repeated task does not narrow."""

from itertools import combinations

import pytest

from venusrl._evaluation.statistics import Interval, clustered, pass_at_k


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_one(n: int) -> None:
    for c in range(n + 1):
        rights = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            draws = list(combinations(rights, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_the_interval_knows_that_rollouts_of_a_task_belong_together() -> None:
    once = clustered([[1.0], [0.0], [1.0], [0.0]])
    often = clustered([[1.0] * 8, [0.0] * 8, [1.0] * 8, [0.0] * 8])
    assert once is not None
    assert once == often
    assert once.low == pytest.approx(0.5 - 1.96 * 0.25, abs=1e-3)


def test_one_task_has_no_interval_and_nothing_has_no_mean() -> None:
    assert clustered([[1.0, 0.0], []]) == Interval(0.5)
    assert clustered([[], []]) is None
