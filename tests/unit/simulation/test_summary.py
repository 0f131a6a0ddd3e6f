"""Quantiles, live context and pressure."""

import pytest

from simulation.summary import mean_live_context, pressure, quantile, spread_of, summarize
from tests.unit.simulation.machines import physics, rollout


def test_quantiles_lie_between_their_neighbours() -> None:
    assert [quantile([0, 10, 20], level) for level in (0, 0.25, 0.5, 1)] == [0, 5, 10, 20]


def test_a_single_value_is_every_quantile() -> None:
    spread = spread_of([3])
    assert (spread.p10, spread.p90, spread.mean) == (3, 3, 3)


def test_first_prompts_and_last_turns_are_apart_in_a_summary() -> None:
    summary = summarize([rollout((2_000, 10), (5, 20), (7, 30))])
    assert summary.new_tokens_of_turn.mean == 6
    assert summary.tool_s_of_turn.mean == 1
    assert (summary.tool_s.mean, summary.output_tokens.mean) == (2, 60)
    assert summary.context_tokens.mean == 2_072


def test_a_long_context_counts_as_often_as_it_samples() -> None:
    """One token at 9 held, then three at 20, 21 and 22."""
    assert mean_live_context([rollout((9, 1), (10, 3))]) == pytest.approx((9 + 20 + 21 + 22) / 4)


def test_pressure_is_what_rollouts_hold_over_what_engines_have() -> None:
    held = pressure([rollout((20, 1))], physics(kv_capacity_tokens=100), engines=2, rollouts=15)
    assert held == pytest.approx(15 * 20 / 200)
