"""A recorded job as trajectories and as what its steps and waits were: rows in, nothing read elsewhere.

    placements, turns                              -> `recorded_engine`  -> EngineRates
    steps, trained tokens, updates                 -> `recorded_trainer` -> TrainerRates
    openings, placements, verdicts                 -> `recorded_waits`, by the load they were seen under

Each fit can be repeated on a resample of groups or steps: that is the forecast's parameter
uncertainty.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from domain.advantage import ZERO_VARIANCE_TOLERANCE
from simulation.summary import quantile
from simulation.workload.trajectory import Tool, Trajectory, Turn

TURNS_MIN: Final = 8
"""Generated turns that a fit of three coefficients needs at the least."""


class NotEnoughRecorded(ValueError):
    """The job has not done enough yet to be learned from; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn as its trajectory has it."""

    prompt_tokens: int
    """Context at the begin of its generation."""
    new_tokens: int
    """Of them, those that the turn before did not have."""
    output_tokens: int
    generate_s: float
    tool_s: float


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """The try of a rollout that counted, on its last placement. Times on one clock, in seconds."""

    host: str
    placed_s: float
    ended_s: float
    turns: tuple[RecordedTurn, ...]
    reward: float | None

    @property
    def generate_s(self) -> float:
        """Seconds of generation in all turns."""
        return math.fsum(turn.generate_s for turn in self.turns)

    @property
    def overhead_s(self) -> float:
        """Seconds of a turn that were neither generation nor tool, on average; queueing included."""
        known = self.generate_s + math.fsum(turn.tool_s for turn in self.turns)
        return max(0.0, self.ended_s - self.placed_s - known) / (len(self.turns) + 1)

    def trajectory(self) -> Trajectory:
        """What a simulation repeats of it; the last reply is no gap, nobody waits behind it."""
        last = len(self.turns) - 1
        return Trajectory(
            tuple(
                Turn(
                    new_tokens=turn.new_tokens,
                    output_tokens=max(turn.output_tokens, 1),
                    tool=None if index == last else Tool.OTHER,
                    tool_s=0.0 if index == last else turn.tool_s,
                )
                for index, turn in enumerate(self.turns)
            )
        )


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A graded group of training, whatever became of it."""

    ordinal: int
    opened_s: float
    closed_s: float
    graded_s: float
    rollouts: tuple[RecordedRollout, ...]

    @property
    def prefix_tokens(self) -> int:
        """The first prompt, which all members share."""
        return min((one.turns[0].prompt_tokens for one in self.rollouts if one.turns), default=0)

    @property
    def is_flat(self) -> bool:
        """Its members' rewards are all equal."""
        return is_flat([one.reward for one in self.rollouts])


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A committed step; `update_s` is part of `busy_s`."""

    step: int
    committed_s: float
    busy_s: float
    update_s: float | None
    trained_tokens: int
    staleness: tuple[int, ...] = ()
    """Of each of its groups, frozen at assignment."""
    assigned_s: tuple[float, ...] = ()
    """When its positions were given away, in order."""
    began_s: float | None = None
    """When the step before was committed, or the job's first group opened: no work of it is older."""


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """What is kept of one attempt."""

    groups: tuple[RecordedGroup, ...]
    steps: tuple[RecordedStep, ...]
    syncs_s: tuple[float, ...]
    engines: int = 1
    slots: int = 1
    kv_tokens: int = 1
    streams: bool = True
    """Whether its trainer worked on groups as they were assigned."""

    def check(self) -> None:
        """Raise NotEnoughRecorded unless something can be fitted."""
        turns = sum(len(one.turns) for group in self.groups for one in group.rollouts)
        if not self.steps:
            raise NotEnoughRecorded("the job has committed no step yet")
        if turns < TURNS_MIN:
            raise NotEnoughRecorded(f"{turns} turns are recorded; {TURNS_MIN} are needed")


def is_flat(rewards: Sequence[float | None]) -> bool:
    """Whether no advantage differs from zero, as the trainer sees it; unknown rewards say nothing."""
    known = [reward for reward in rewards if reward is not None]
    return bool(known) and max(known) - min(known) <= ZERO_VARIANCE_TOLERANCE


def sync_s_of(job: RecordedJob) -> float:
    """Median of the weight syncs."""
    return level_of(job.syncs_s, 0.5)


def turns_of(
    spans: Sequence[Mapping[str, float]], is_same_segment: Sequence[bool]
) -> tuple[RecordedTurn, ...]:
    """Turns from a trajectory's spans (start, sampled_end, generate_s, tool_s); a new segment's
    whole prompt is new."""
    turns: list[RecordedTurn] = []
    known = 0
    for span, same in zip(spans, is_same_segment, strict=True):
        start, sampled_end = int(span["start"]), int(span["sampled_end"])
        turns.append(
            RecordedTurn(
                prompt_tokens=start,
                new_tokens=max(start - known, 0) if same else start,
                output_tokens=max(sampled_end - start, 0),
                generate_s=span["generate_s"],
                tool_s=span["tool_s"],
            )
        )
        known = sampled_end
    return tuple(turns)


def level_of(values: Iterable[float], level: float) -> float:
    """A quantile of seconds, none of them below zero; 0 without any."""
    ordered = sorted(max(value, 0.0) for value in values)
    return quantile(ordered, level) if ordered else 0.0
