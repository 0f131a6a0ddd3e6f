"""The groups of a run: one base trajectory per group, varied per rollout.

A group is its ordinal. Its base is drawn from a source of real or fitted trajectories; each member
stretches the base's list of turns by exp(N(-s^2/2, s)), takes its turns near the same relative
position and jitters their outputs by exp(N(0, jitter)). Everything follows from (seed, ordinal,
member) through a digest, so it does not matter who asks first, or whether anybody asks at all.
"""

import hashlib
import math
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from simulation.workload.trajectory import Trajectory, Turn

NEARBY_TURNS: Final = 1.0
"""A member's turn comes from at most this many turns beside its place in the base, so that siblings
resemble and do not repeat each other."""

GROUPS_KEPT_MAX: Final = 2_048
"""Groups remembered, so that every strategy of a cell reads what the first one drew; the largest
cell needs 1,536, and a forgotten group is drawn again as it was."""


class Bases(Protocol):
    """A source of base trajectories."""

    def draw(self, chance: Random) -> Trajectory:
        """One base; the same state of `chance` gives the same one."""
        ...


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """How bases become rollouts."""

    rollouts_per_group: int = 8
    spread: float = 0.4
    tool_factor: float = 1.0
    output_jitter: float = 0.3
    first_prompt_tokens: int = 2_000
    context_tokens_max: int = 100_000


@dataclass(slots=True)
class Workload:
    """Trajectories by (ordinal, member), drawn when they are asked for."""

    bases: Bases
    shape: WorkloadShape
    seed: int
    _groups: dict[int, tuple[Trajectory, ...]] = field(default_factory=dict, repr=False)

    def group(self, ordinal: int) -> tuple[Trajectory, ...]:
        """All members of a group; they share their first prompt."""
        found = self._groups.get(ordinal)
        if found is None:
            found = self._draw(ordinal)
            if len(self._groups) >= GROUPS_KEPT_MAX:
                del self._groups[next(iter(self._groups))]
            self._groups[ordinal] = found
        return found

    def trajectory(self, ordinal: int, member: int) -> Trajectory:
        """One member of a group."""
        return self.group(ordinal)[member]

    def _draw(self, ordinal: int) -> tuple[Trajectory, ...]:
        base = self.bases.draw(chance_of(self.seed, ordinal, "base"))
        return tuple(
            vary(base, self.shape, chance_of(self.seed, ordinal, f"member {member}"))
            for member in range(self.shape.rollouts_per_group)
        )


def chance_of(seed: int, ordinal: int, purpose: str) -> Random:
    """A random source of its own for every purpose, the same under every hash seed."""
    digest = hashlib.sha256(f"{seed}/{ordinal}/{purpose}".encode()).digest()
    return Random(int.from_bytes(digest[:16], "big"))


def vary(base: Trajectory, shape: WorkloadShape, chance: Random) -> Trajectory:
    """A rollout of the base's task."""
    stretch = math.exp(chance.gauss(-(shape.spread**2) / 2, shape.spread))
    count = max(1, round(len(base.turns) * stretch))
    turns: list[Turn] = []
    room = shape.context_tokens_max
    for position in range(count):
        source, observed = _nearby(base, (position + 0.5) / count, chance)
        if position == count - 1:
            source = base.turns[-1]
        new_tokens = shape.first_prompt_tokens if position == 0 else observed
        jitter = math.exp(chance.gauss(0, shape.output_jitter))
        if room <= new_tokens:
            break
        room -= new_tokens
        output_tokens = min(room, max(1, round(source.output_tokens * jitter)))
        room -= output_tokens
        turns.append(
            Turn(new_tokens, output_tokens, source.tool, source.tool_s * shape.tool_factor)
        )
        if room == 0:
            break
    turns[-1] = Turn(turns[-1].new_tokens, turns[-1].output_tokens, None, 0.0)
    return Trajectory(tuple(turns))


def _nearby(base: Trajectory, relative: float, chance: Random) -> tuple[Turn, int]:
    """A turn of the base near the relative position, and the tokens observed before one there.

    The base's first prompt is no observation, and its last turn runs no tool: neither is taken for
    a turn in the middle, where the base has others.
    """
    last = len(base.turns) - 1
    place = relative * (last + 1) + chance.uniform(-NEARBY_TURNS, NEARBY_TURNS)
    index = min(max(int(place), 0), last)
    observed = base.turns[max(index, 1)].new_tokens if last else 0
    return base.turns[min(index, max(last - 1, 0))], observed
