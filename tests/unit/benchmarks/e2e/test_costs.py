"""Costs of an engine, from points that were measured and from turns that were recorded."""

import pytest

from benchmarks.e2e.costs import Costs, fitted, scale_of
from simulation.fitting import Row


def test_costs_come_from_prefills_and_decode_steps() -> None:
    prefills = [
        Row((tokens, tokens**2 / 2), tokens * (1e-4 + 1e-8 * tokens / 2), 1.0)
        for tokens in (512.0, 2048.0, 4096.0)
    ]
    decodes = [Row((1.0, read), 3e-3 + read * 1e-7, 1.0) for read in (512.0, 8192.0, 65536.0)]
    found = fitted(prefills, decodes)
    assert found.columns == pytest.approx((3e-3, 1e-7, 1e-4, 1e-8))


def test_recorded_turns_say_by_which_factor_all_costs_are_dearer() -> None:
    costs = Costs(1e-2, 0.0, 1e-3)
    rows = [Row((10.0, 0.0, 100.0, 0.0), 0.2 * factor, 1.0) for factor in (2.0, 4.5)]
    scale, spread = scale_of(costs, rows)
    assert scale == pytest.approx(3.0)
    assert spread == pytest.approx(0.405, abs=1e-3)


def test_without_turns_costs_are_as_measured() -> None:
    assert scale_of(Costs(1e-2, 0.0, 1e-3), []) == (1.0, 0.0)
