"""What a what-if was wrong by where the truth is known, taken out of what it says of changed settings.

One rule for every figure: it is multiplied by recorded / forecast of the same figure on the unchanged
settings, within CORRECTION_MAX, and its interval reaches at least as far as that forecast was off. A
figure that is 0 on either side says no ratio and stays. Staleness comes from the job's own bounds and
not from a cost model: it is not multiplied, and its interval reaches as far as the difference.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simulation.plan import MODEL_ERROR_MIN, Figure, Forecast, Interval

CORRECTION_MAX: Final = 3.0
"""Beyond it a forecast says nothing about the truth, and is not scaled to it."""

Z90: Final = 1.2815515655446004
"""Standard normal quantile of 90 %: an 80 % interval reaches so many standard deviations."""

WHOLE: Final = 1.0
"""No share of time is larger."""


def correction_of(real: float, modelled: float) -> float:
    """What a figure is multiplied by."""
    if real <= 0.0 or modelled <= 0.0:
        return 1.0
    return min(max(real / modelled, 1.0 / CORRECTION_MAX), CORRECTION_MAX)


def model_error_of(real: float, modelled: float) -> float:
    """Standard deviation of the logarithm of time: with it an 80 % interval reaches the error."""
    if real <= 0.0 or modelled <= 0.0:
        return MODEL_ERROR_MIN
    return max(MODEL_ERROR_MIN, abs(math.log(real / modelled)) / Z90)


def corrected(changed: Forecast, real: Mapping[Figure, float], unchanged: Forecast) -> Forecast:
    """The forecast of changed settings, less what that of the unchanged ones was wrong by."""
    figures = {
        name: _figure(name, one, real[name], unchanged.figures[name].median)
        for name, one in changed.figures.items()
    }
    return replace(changed, figures=figures)


def _figure(name: Figure, one: Interval, real: float, modelled: float) -> Interval:
    if name is Figure.STALENESS_MEAN:
        off = abs(real - modelled)
        low = max(min(one.low, one.median - off), 0.0)
        return Interval(one.median, low, max(one.high, one.median + off))
    factor = correction_of(real, modelled)
    error = abs(math.log(real / modelled)) if real > 0.0 and modelled > 0.0 else 0.0
    median = one.median * factor
    low = min(one.low * factor, median * math.exp(-error))
    high = max(one.high * factor, median * math.exp(error))
    most = WHOLE if name is Figure.ENGINE_USE else math.inf
    return Interval(min(median, most), min(low, most), min(high, most))
