"""One rule takes out of a what-if what it was wrong by on the unchanged settings."""

import math
from dataclasses import replace

import pytest

from simulation.correction import corrected, correction_of, model_error_of
from simulation.plan import MODEL_ERROR_MIN, Figure, Forecast, Interval


def said(value: float, spread: float = 0.0) -> Forecast:
    """A forecast of the same value for all figures."""
    one = Interval(value, value - spread, value + spread)
    return Forecast(dict.fromkeys(Figure, one), (one,), 8, 3, 4)


def real(value: float) -> dict[Figure, float]:
    """What happened, the same for all figures."""
    return dict.fromkeys(Figure, value)


RATIOS = [one for one in Figure if one is not Figure.STALENESS_MEAN]


@pytest.mark.parametrize("name", RATIOS)
def test_every_figure_is_multiplied_by_what_its_own_forecast_missed(name: Figure) -> None:
    found = corrected(said(0.4), real(0.3), said(0.6)).figures[name]
    assert found.median == pytest.approx(0.4 * 0.3 / 0.6)


@pytest.mark.parametrize("name", RATIOS)
def test_no_interval_is_narrower_than_the_error_of_the_unchanged_settings(name: Figure) -> None:
    found = corrected(said(0.2), real(0.3), said(0.6)).figures[name]
    assert found.low <= found.median / 2.0
    assert found.high >= found.median * 2.0


def test_a_wider_interval_stays_as_wide() -> None:
    found = corrected(said(10.0, 9.0), real(1.1), said(1.0)).figures[Figure.STEP_S]
    assert found.low == pytest.approx(1.1)
    assert found.high == pytest.approx(20.9)


def test_staleness_is_not_multiplied_and_reaches_as_far_as_it_was_off() -> None:
    found = corrected(said(1.0), real(0.0), said(0.4)).figures[Figure.STALENESS_MEAN]
    assert found.median == 1.0
    assert found.low == pytest.approx(0.6)
    assert found.high == pytest.approx(1.4)
    assert corrected(said(1.0), real(0.0), said(0.4)).staleness == said(1.0).staleness


def test_an_engine_is_never_used_more_than_wholly() -> None:
    found = corrected(said(0.9), real(0.8), said(0.4)).figures[Figure.ENGINE_USE]
    assert found.median == found.high == 1.0


def test_what_is_nothing_on_one_side_says_no_ratio() -> None:
    changed = replace(said(2.0), figures=said(2.0).figures)
    assert corrected(changed, real(0.0), said(0.5)).figures[Figure.SANDBOXES].median == 2.0
    assert correction_of(1.0, 0.0) == 1.0


def test_a_correction_is_bounded() -> None:
    assert correction_of(100.0, 1.0) == 3.0
    assert correction_of(1.0, 100.0) == pytest.approx(1 / 3)


def test_an_80_percent_interval_of_the_model_error_reaches_the_error() -> None:
    assert math.exp(1.2815515655446004 * model_error_of(2.0, 1.0)) == pytest.approx(2.0)
    assert model_error_of(1.0, 1.0) == MODEL_ERROR_MIN
