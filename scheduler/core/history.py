"""What a job's own past says about the length of a rollout and of a group.

The `history` predictor of `scheduling.md` section 7: running means over finished rollouts. How many
turns a rollout will have is a weighted mean of what is known, by trust:

    finished siblings > earlier groups of its task > the job's finished rollouts > the plan's prior

All of it is soft state: a new leader begins without, and learns as rollouts end.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from domain.events import Remaining

PRIOR_WEIGHT: Final = 8.0
"""Finished rollouts that the prior counts for, so that the first odd rollout does not swing the order."""

MEMORY: Final = 256.0
"""Rollouts that a running mean remembers; older ones came from another policy."""

TOKENS_PER_SECOND: Final = 50.0
"""Exchange rate between sampled tokens and tool seconds; only the order of estimates matters."""

PRIOR_TOKENS_PER_TURN: Final = 32.0
"""Used until the first rollout has finished; scales all estimates alike."""

BASE_WEIGHT: Final = 0.43
"""Siblings that the job's mean counts for: (1 - r) / r, the best linear estimate (Henderson 1975) where
siblings' lengths correlate r = 0.70, as on public coding traces (`scheduling.md` section 7)."""

TASK_WEIGHT_MAX: Final = 2.0
"""Siblings that all earlier groups of a task count for: an older policy made them, so that three siblings
of now outweigh them."""

TASK_MEMORY: Final = 16.0
"""Rollouts that a task's mean remembers: two groups of the usual size, so that it follows the policy."""

TASKS_MAX: Final = 8_192
"""Tasks of a job that are remembered, those seen last. Some 250 bytes each, so 2 MB: what 1,000 live
rollouts may take. A larger set repeats too seldom for its lengths to still be true."""

LEAST_TURNS_LEFT: Final = 0.5
"""An open rollout has work left however long it already ran."""

GROUP_FADE: Final = 0.95
"""Share of the longest group time that survives each completed group."""


@dataclass(slots=True)
class Mean:
    """A running mean that forgets: weight grows to `MEMORY`, then old values fade."""

    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, memory: float = MEMORY) -> None:
        """Fold in one value."""
        self.weight = min(self.weight + 1.0, memory)
        self.value += (value - self.value) / self.weight

    def blend(self, prior: float) -> float:
        """The mean with a prior that counts for `PRIOR_WEIGHT` values."""
        total = self.weight + PRIOR_WEIGHT
        return (self.value * self.weight + prior * PRIOR_WEIGHT) / total


@dataclass(slots=True)
class TaskHistory:
    """Mean turns of the finished rollouts of a job's tasks, by task, the one seen last at the end."""

    turns: dict[int, Mean] = field(default_factory=dict)

    def add(self, task: int, turns: int) -> None:
        """A rollout of the task ended by itself."""
        mean = self.turns.pop(task, None) or Mean()
        mean.add(float(turns), TASK_MEMORY)
        self.turns[task] = mean
        if len(self.turns) > TASKS_MAX:
            del self.turns[next(iter(self.turns))]

    def weighted(self, task: int | None) -> tuple[float, float]:
        """Mean turns of the task's former rollouts, and the siblings that they count for."""
        mean = None if task is None else self.turns.get(task)
        return (0.0, 0.0) if mean is None else (mean.value, min(mean.weight, TASK_WEIGHT_MAX))


class Known(NamedTuple):
    """What tells one group's length from another's."""

    task: int | None = None
    """Number of its task, where it is known."""
    ended_turns: int = 0
    """Of its members that have ended."""
    ended: int = 0


UNKNOWN: Final = Known()
"""Of a group that nothing is known of."""


@dataclass(slots=True)
class History:
    """Running means of one job, over its finished rollouts and completed groups."""

    turns: Mean = field(default_factory=Mean)
    tokens_per_turn: Mean = field(default_factory=Mean)
    tool_s_per_turn: Mean = field(default_factory=Mean)
    tasks: TaskHistory = field(default_factory=TaskHistory)
    longest_group_s: float = 0.0
    """Fades with each completed group, so that one outlier does not blind the watchdog for ever."""

    def add_rollout(
        self, turns: int, sampled_tokens: int, tool_s: float, task: int | None = None
    ) -> None:
        """Learn from a rollout that ended by itself; `task` where it counts for its task as well."""
        shown = max(turns, 1)
        self.turns.add(float(shown))
        self.tokens_per_turn.add(sampled_tokens / shown)
        self.tool_s_per_turn.add(tool_s / shown)
        if task is not None:
            self.tasks.add(task, shown)

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

    def turns_of(self, expected_turns: int, known: Known) -> float:
        """Estimated turns of a rollout, from its siblings, its task, its job and the plan's prior."""
        base = self.turns.blend(float(expected_turns))
        former, trust = self.tasks.weighted(known.task)
        total = known.ended_turns + former * trust + base * BASE_WEIGHT
        return total / (known.ended + trust + BASE_WEIGHT)

    def remaining_s(self, turns_done: int, expected_turns: int, known: Known = UNKNOWN) -> float:
        """Estimated seconds of generation and tools until a rollout with these turns ends."""
        turns_left = max(self.turns_of(expected_turns, known) - turns_done, LEAST_TURNS_LEFT)
        tokens = self.tokens_per_turn.blend(PRIOR_TOKENS_PER_TURN)
        return turns_left * (tokens / TOKENS_PER_SECOND + self.tool_s_per_turn.value)
