"""`@reward`, `@group_reward` and `@metric`: the components of a verdict, declared on methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar, overload

REWARD_MARK: Final = "_venus_reward"
"""Attribute that holds a component's declaration; underscored so that it meets no author's name."""

REWARD_TIMEOUT_S: Final = 60.0
"""A component that says nothing may take this long, a group component too."""

METRIC_TIMEOUT_S: Final = 10.0
"""Metrics decide nothing, so they may not hold a verdict up for long."""

REWARD_TIMEOUT_S_MAX: Final = 3600.0
"""A grade that takes longer than an hour holds its group's place in the batch for too long."""

ComponentKind: TypeAlias = Literal["reward", "group_reward", "metric"]
"""Per rollout and weighted, per group and weighted, per rollout and only shown."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """One declared component."""

    name: str
    kind: ComponentKind
    weight: float
    timeout_s: float


@overload
def reward(function: F, /) -> F: ...
@overload
def reward(*, weight: float = ..., timeout_s: float = ...) -> Callable[[F], F]: ...
def reward(
    function: F | None = None, /, *, weight: float = 1.0, timeout_s: float = REWARD_TIMEOUT_S
) -> F | Callable[[F], F]:
    """Declare a component of each rollout's reward; the total is the weighted sum.

    `@reward` alone has the defaults.
    """
    mark = _mark("reward", weight, timeout_s)
    return mark if function is None else mark(function)


@overload
def group_reward(function: F, /) -> F: ...
@overload
def group_reward(*, weight: float = ..., timeout_s: float = ...) -> Callable[[F], F]: ...
def group_reward(
    function: F | None = None, /, *, weight: float = 1.0, timeout_s: float = REWARD_TIMEOUT_S
) -> F | Callable[[F], F]:
    """Declare a component that sees the whole group and returns one value for each rollout."""
    mark = _mark("group_reward", weight, timeout_s)
    return mark if function is None else mark(function)


@overload
def metric(function: F, /) -> F: ...
@overload
def metric() -> Callable[[F], F]: ...
def metric(function: F | None = None, /) -> F | Callable[[F], F]:
    """Declare a number that is shown and never trained on."""
    mark = _mark("metric", 0.0, METRIC_TIMEOUT_S)
    return mark if function is None else mark(function)


def component_spec(function: object) -> ComponentSpec | None:
    """The declaration on a function, None for an ordinary one."""
    spec = getattr(function, REWARD_MARK, None)
    return spec if isinstance(spec, ComponentSpec) else None


def _mark(kind: ComponentKind, weight: float, timeout_s: float) -> Callable[[F], F]:
    if not math.isfinite(weight):
        raise ValueError(f"the weight of a {kind} must be finite, not {weight}")
    if not 0 < timeout_s <= REWARD_TIMEOUT_S_MAX:
        raise ValueError(f"timeout_s must lie in (0, {REWARD_TIMEOUT_S_MAX:g}], not {timeout_s}")

    def mark(function: F) -> F:
        name = function.__name__
        vars(function)[REWARD_MARK] = ComponentSpec(name, kind, float(weight), float(timeout_s))
        return function

    return mark
