"""Continuum's time to live."""

import pytest

from domain.plan import Scheduling, StrategyName
from kv.rules import Gaps, Queue, rules_of
from kv.ttl import TTL_MAX_S, UNKNOWN_TTL_S, TtlLimits, ttl_s


def test_a_tool_without_history_has_the_fixed_pin() -> None:
    assert ttl_s((), 1.0, 1.0) == UNKNOWN_TTL_S
    assert ttl_s((), 1.0, 1.0, TtlLimits(unknown_s=0.5)) == 0.5


def test_short_gaps_before_a_dear_reload_are_pinned_to_the_longest() -> None:
    assert ttl_s((0.2, 0.3, 0.4), 5.0, 0.0) == 0.4


def test_gaps_longer_than_what_a_loss_costs_are_not_pinned() -> None:
    assert ttl_s((30.0, 40.0, 50.0), 2.0, 1.0) == 0.0


def test_a_mixed_tool_is_pinned_for_its_short_part_only() -> None:
    assert ttl_s((0.5, 0.5, 0.5, 200.0), 4.0, 2.0) == 0.5


def test_a_lost_place_in_the_queue_can_make_a_pin_worth_it() -> None:
    gaps = (5.0, 5.0, 5.0)
    assert ttl_s(gaps, 1.0, 0.0) == 0.0
    assert ttl_s(gaps, 1.0, 20.0) == 5.0


def test_the_order_of_the_history_does_not_matter() -> None:
    assert ttl_s((3.0, 0.1, 1.0), 4.0, 0.0) == ttl_s((0.1, 1.0, 3.0), 4.0, 0.0)


@pytest.mark.parametrize("gap", [TTL_MAX_S + 1.0, 5000.0])
def test_no_pin_is_longer_than_the_bound(gap: float) -> None:
    assert ttl_s((gap,), 1e6, 0.0) == 0.0


def test_the_rules_of_ttl_serve_by_rank_and_carry_the_jobs_limits() -> None:
    rules = rules_of(Scheduling(StrategyName.TTL, knobs=(("ttl_max_s", 9.0),)))
    assert (rules.queue, rules.gaps, rules.ttl.max_s) == (Queue.RANK, Gaps.TTL, 9.0)
    assert rules.ttl.unknown_s == UNKNOWN_TTL_S
