"""What a job's own past says about the length of a rollout and of a group.

The `history` predictor of `scheduling.md` section 7 in its smallest form: running means over finished
rollouts, with the plan's expected turns as the prior.
"""

from dataclasses import dataclass, field
from typing import Final

from domain.events import Remaining

PRIOR_WEIGHT: Final = 8.0
"""Finished rollouts that the prior counts for, so that the first odd rollout does not swing the order."""

MEMORY: Final = 256.0
"""Rollouts that a running mean remembers; older ones came from another policy."""

TOKENS_PER_SECOND: Final = 50.0
"""Exchange rate between sampled tokens and tool seconds; only the order of estimates matters."""

PRIOR_TOKENS_PER_TURN: Final = 32.0
"""Used until the first rollout has finished; scales all estimates alike."""

LEAST_TURNS_LEFT: Final = 0.5
"""An open rollout has work left however long it already ran."""

GROUP_FADE: Final = 0.95
"""Share of the longest group time that survives each completed group."""


@dataclass(slots=True)
class Mean:
    """A running mean that forgets: weight grows to `MEMORY`, then old values fade."""

    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        """Fold in one value."""
        self.weight = min(self.weight + 1.0, MEMORY)
        self.value += (value - self.value) / self.weight

    def blend(self, prior: float) -> float:
        """The mean with a prior that counts for `PRIOR_WEIGHT` values."""
        total = self.weight + PRIOR_WEIGHT
        return (self.value * self.weight + prior * PRIOR_WEIGHT) / total


@dataclass(slots=True)
class History:
    """Running means of one job, over its finished rollouts and completed groups."""

    turns: Mean = field(default_factory=Mean)
    tokens_per_turn: Mean = field(default_factory=Mean)
    tool_s_per_turn: Mean = field(default_factory=Mean)
    longest_group_s: float = 0.0
    """Fades with each completed group, so that one outlier does not blind the watchdog for ever."""

    def add_rollout(self, turns: int, sampled_tokens: int, tool_s: float) -> None:
        """Learn from a rollout that ended by itself."""
        shown = max(turns, 1)
        self.turns.add(float(shown))
        self.tokens_per_turn.add(sampled_tokens / shown)
        self.tool_s_per_turn.add(tool_s / shown)

    def add_group(self, duration_s: float) -> None:
        """Learn from a group that completed."""
        self.longest_group_s = max(duration_s, self.longest_group_s * GROUP_FADE)

    def seconds_of(self, remaining: Remaining) -> float:
        """A learned estimate in the seconds that all estimates of a job are compared in."""
        return remaining.tokens / TOKENS_PER_SECOND + remaining.tool_s

    def prior_s(self, turns_done: int, expected_turns: int) -> float:
        """What the plan's prior alone says: the estimate of a job whose predictor is off."""
        turns_left = max(expected_turns - turns_done, LEAST_TURNS_LEFT)
        return turns_left * PRIOR_TOKENS_PER_TURN / TOKENS_PER_SECOND

    def remaining_s(self, turns_done: int, expected_turns: int) -> float:
        """Estimated seconds of generation and tools until a rollout with these turns ends."""
        turns_left = max(self.turns.blend(float(expected_turns)) - turns_done, LEAST_TURNS_LEFT)
        tokens = self.tokens_per_turn.blend(PRIOR_TOKENS_PER_TURN)
        return turns_left * (tokens / TOKENS_PER_SECOND + self.tool_s_per_turn.value)
