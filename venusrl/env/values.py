"""What a reward may be: a finite number, or `Unscorable` with its reason. Never a silent zero.

A trained zero that stands for a broken grader is the fault that this module exists to prevent:
whatever is not a plain finite number becomes `Unscorable`, and one unscorable weighted component
makes the whole rollout unscorable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

REWARD_MAGNITUDE_MAX: Final = 1.0e9
"""Group statistics square rewards in float64 and losses carry them in float32; both stay exact
enough below this bound, while 1e308 would overflow either one into an infinity."""

DETAIL_CHARS_MAX: Final = 500
"""A detail is for a person to read in a list of rollouts, not a log."""


class Unscorable(Exception):
    """No verdict, and why. `reason` is one word of a closed set or the author's own.

    A reward returns it or raises it; equal ones are equal values.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        """Keep both."""
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __eq__(self, other: object) -> bool:
        """Whether both say the same."""
        return isinstance(other, Unscorable) and self.args == other.args

    def __hash__(self) -> int:
        """As equality."""
        return hash(self.args)


Value: TypeAlias = float | Unscorable
"""One component of a reward."""


def as_value(raw: object) -> Value:
    """Turn what an author's reward returned into a value.

    int and float are numbers; bool, None, text and everything else are `bad_type`; NaN and the
    infinities are `not_finite`; more than `REWARD_MAGNITUDE_MAX` either way is `out_of_range`.
    """
    if isinstance(raw, Unscorable):
        return Unscorable(str(raw.reason)[:DETAIL_CHARS_MAX], str(raw.detail)[:DETAIL_CHARS_MAX])
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        return Unscorable("bad_type", f"a reward must be a number, not {type(raw).__name__}")
    if isinstance(raw, float) and not math.isfinite(raw):
        return Unscorable("not_finite", f"a reward must be finite, not {raw}")
    if not -REWARD_MAGNITUDE_MAX <= raw <= REWARD_MAGNITUDE_MAX:
        return Unscorable("out_of_range", f"a reward must lie within +-{REWARD_MAGNITUDE_MAX:g}")
    return float(raw)


def weighted_total(components: Mapping[str, Value], weights: Mapping[str, float]) -> Value:
    """The weighted sum in the order of `weights`; an unscorable weighted component decides alone.

    A component that is missing is unscorable too. Components of weight 0 are not looked at.
    """
    total = 0.0
    for name, weight in weights.items():
        if weight == 0.0:
            continue
        value = components.get(name, Unscorable("missing", f"no value for {name}"))
        if isinstance(value, Unscorable):
            return Unscorable(value.reason, value.detail or f"component {name}")
        total += weight * value
    return as_value(total)
