"""Rewards: only finite numbers are values; everything else is unscorable with its reason."""

from decimal import Decimal

import pytest

from venusrl.env.values import REWARD_MAGNITUDE_MAX, Unscorable, as_value, weighted_total


@pytest.mark.parametrize("raw", [0, 1, -0.2, 0.0, REWARD_MAGNITUDE_MAX, -REWARD_MAGNITUDE_MAX])
def test_finite_numbers_are_values(raw: float) -> None:
    value = as_value(raw)
    assert isinstance(value, float)
    assert value == raw


@pytest.mark.parametrize("raw", [True, False, None, "1.0", "", "abc", b"1", Decimal(1), [1.0], {}])
def test_what_is_not_a_number_is_unscorable(raw: object) -> None:
    value = as_value(raw)
    assert isinstance(value, Unscorable)
    assert value.reason == "bad_type"


@pytest.mark.parametrize("raw", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_unscorable(raw: float) -> None:
    value = as_value(raw)
    assert isinstance(value, Unscorable)
    assert value.reason == "not_finite"


@pytest.mark.parametrize("raw", [1e308, -1e308, 10**400])
def test_what_would_overflow_is_unscorable(raw: float) -> None:
    value = as_value(raw)
    assert isinstance(value, Unscorable)
    assert value.reason == "out_of_range"


def test_an_authors_own_reason_is_kept() -> None:
    assert as_value(Unscorable("no_verdict", "empty file")) == Unscorable(
        "no_verdict", "empty file"
    )


def test_the_total_is_the_weighted_sum() -> None:
    assert weighted_total({"a": 1.0, "b": 0.5}, {"a": 1.0, "b": -2.0}) == 0.0


def test_one_unscorable_component_makes_the_total_unscorable() -> None:
    total = weighted_total({"a": 1.0, "b": Unscorable("timeout")}, {"a": 1.0, "b": 0.1})
    assert isinstance(total, Unscorable)
    assert total.reason == "timeout"


def test_a_component_without_weight_decides_nothing() -> None:
    assert weighted_total({"a": 1.0, "b": Unscorable("timeout")}, {"a": 1.0, "b": 0.0}) == 1.0


def test_a_missing_component_is_never_a_zero() -> None:
    total = weighted_total({}, {"a": 1.0})
    assert isinstance(total, Unscorable)
    assert total.reason == "missing"


def test_a_total_that_overflows_is_unscorable() -> None:
    total = weighted_total({"a": REWARD_MAGNITUDE_MAX}, {"a": 1e300})
    assert isinstance(total, Unscorable)
