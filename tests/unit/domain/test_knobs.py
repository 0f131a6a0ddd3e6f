"""The numbers of strategies."""

import pytest

from domain import knobs
from domain.plan import StrategyName


@pytest.mark.parametrize("strategy", list(StrategyName))
def test_every_strategy_declares_knobs_whose_defaults_are_in_their_range(
    strategy: StrategyName,
) -> None:
    names = [knob.name for knob in knobs.KNOBS[strategy]]
    assert len(set(names)) == len(names)
    for knob in knobs.KNOBS[strategy]:
        assert knob.accepts(knob.default), knob.name
        assert knob.low < knob.high, knob.name


def test_a_value_outside_its_range_is_not_accepted() -> None:
    knob = knobs.find(StrategyName.AIMD, "growth")
    assert knob is not None
    assert [knob.accepts(value) for value in (0.5, 1.0, 1.7, 2.5, float("nan"))] == [
        False, True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("strategy", list(StrategyName))
def test_defaults_contradict_nothing_and_contradictions_are_of_declared_numbers(
    strategy: StrategyName,
) -> None:
    assert knobs.contradictions(strategy, {}) == []
    for names in knobs.ASCENDING.get(strategy, ()):
        assert all(knobs.find(strategy, name) is not None for name in names)


def test_numbers_that_fall_where_they_must_not_contradict_each_other() -> None:
    found = knobs.contradictions(StrategyName.AIMD, {"grow_below": 0.85})
    assert found == [(("grow_below", 0.85), ("soft_usage", 0.8))]
    assert knobs.contradictions(StrategyName.AIMD, {"grow_below": 0.8}) == []


def test_whole_numbers_are_whole() -> None:
    knob = knobs.find(StrategyName.SLIME_BOUNDED, "lag_max")
    assert knob is not None
    assert not knob.accepts(1.5)


def test_an_unknown_knob_is_not_found() -> None:
    assert knobs.find(StrategyName.VENUS, "growth") is None
