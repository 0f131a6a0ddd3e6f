"""What a workload looks like in a few numbers, and how hard it presses on the engines' KV."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from simulation.physics import EnginePhysics
from simulation.workload.trajectory import Trajectory

LEVELS: Final = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles and mean of one quantity."""

    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    mean: float


@dataclass(frozen=True, slots=True)
class WorkloadSummary:
    """The quantities in which a fitted workload must agree with the recorded one."""

    turns: Spread
    output_tokens: Spread
    """Of a whole trajectory."""
    context_tokens: Spread
    """At the end of a trajectory."""
    tool_s: Spread
    """Of a whole trajectory."""
    output_tokens_of_turn: Spread
    new_tokens_of_turn: Spread
    """Of turns after the first."""
    tool_s_of_turn: Spread
    """Of turns that end in a tool."""


def quantile(ordered: Sequence[float], level: float) -> float:
    """Of ascending values, linear between neighbours (the usual definition 7)."""
    place = level * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def spread_of(values: Iterable[float]) -> Spread:
    """Quantiles and mean; at least one value."""
    ordered = sorted(values)
    p10, p25, p50, p75, p90 = (quantile(ordered, level) for level in LEVELS)
    return Spread(p10, p25, p50, p75, p90, sum(ordered) / len(ordered))


def summarize(trajectories: Sequence[Trajectory]) -> WorkloadSummary:
    """The summary of rollouts or of bases."""
    turns = [turn for one in trajectories for turn in one.turns]
    later = [turn.new_tokens for one in trajectories for turn in one.turns[1:]]
    return WorkloadSummary(
        turns=spread_of(len(one.turns) for one in trajectories),
        output_tokens=spread_of(one.output_tokens for one in trajectories),
        context_tokens=spread_of(one.context_tokens for one in trajectories),
        tool_s=spread_of(one.tool_s for one in trajectories),
        output_tokens_of_turn=spread_of(turn.output_tokens for turn in turns),
        new_tokens_of_turn=spread_of(later),
        tool_s_of_turn=spread_of(turn.tool_s for turn in turns if turn.tool is not None),
    )


def mean_live_context(trajectories: Iterable[Trajectory]) -> float:
    """Tokens that a rollout holds at a sampled token of the workload, averaged over all of them.

    A rollout is live for as long as it samples, so a long context counts as often as tokens are
    sampled in it.
    """
    held = sampled = 0.0
    for trajectory in trajectories:
        for prompt, turn in trajectory.with_prompts():
            held += turn.output_tokens * (prompt + (turn.output_tokens - 1) / 2)
            sampled += turn.output_tokens
    return held / sampled


def pressure(
    trajectories: Iterable[Trajectory], physics: EnginePhysics, *, engines: int, rollouts: int
) -> float:
    """Tokens that `rollouts` hold at once over what the engines have room for."""
    room = engines * physics.kv_capacity_tokens
    return rollouts * mean_live_context(trajectories) / room
