"""Multi-turn rollouts with imposed lengths: the same prompts, answers and tool outputs for everybody.

Lengths of answers are lognormal: most turns are short and a few are many times as long, which is what
rollouts of reasoning models look like (`simulation/workload/fitted.json`) and what static batches suffer
from. End tokens are off, so that every side samples exactly as many tokens.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from benchmarks.engine.models import VOCABULARY

TOKENS: Final = VOCABULARY.plain
"""Prompts and tool outputs are drawn from plain tokens."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a workload. Ranges are inclusive."""

    rollouts: int
    group_size: int
    turns: tuple[int, int]
    shared_prompt: tuple[int, int]
    """Tokens that the members of a group begin with."""
    own_prompt: int
    output_median: float
    output_sigma: float
    """Of the logarithm; at 1.0 one turn in a hundred is ten times the median."""
    output_max: int
    observation: tuple[int, int]
    """Tokens of a tool's output."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What comes before an answer, and how long the answer is."""

    added: tuple[int, ...]
    """The prompt, or the tool's output."""
    output: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """One rollout's turns."""

    ordinal: int
    group: int
    turns: tuple[Turn, ...]

    @property
    def sampled(self) -> int:
        """Tokens that it samples."""
        return sum(turn.output for turn in self.turns)

    @property
    def length(self) -> int:
        """Tokens of its context at the end."""
        return self.sampled + sum(len(turn.added) for turn in self.turns)


RATE: Final = Shape(
    rollouts=32, group_size=4, turns=(2, 4), shared_prompt=(32, 64), own_prompt=16,
    output_median=24.0, output_sigma=1.0, output_max=256, observation=(16, 48),
)  # fmt: skip
"""32 rollouts at once, in groups: contexts grow to some hundred tokens."""

EQUAL: Final = replace(RATE, turns=(3, 3), output_median=40.0, output_sigma=0.0)
"""As many tokens in answers of one length: what is left when nobody waits for the longest of a batch."""

PRESSURE: Final = Shape(
    rollouts=96, group_size=4, turns=(4, 8), shared_prompt=(24, 48), own_prompt=8,
    output_median=20.0, output_sigma=0.8, output_max=160, observation=(4, 24),
)  # fmt: skip
"""Three times as many as live at once, so that contexts of all ages share the pages."""


def draw(shape: Shape, seed: int) -> tuple[Rollout, ...]:
    """The workload of one seed."""
    return tuple(_rollout(shape, seed, ordinal) for ordinal in range(shape.rollouts))


def _rollout(shape: Shape, seed: int, ordinal: int) -> Rollout:
    group = ordinal // shape.group_size
    shared = Random(f"{seed} group {group}")
    chance = Random(f"{seed} rollout {ordinal}")
    prompt = (
        *_text(shared, shared.randint(*shape.shared_prompt)),
        *_text(chance, shape.own_prompt),
    )
    turns = tuple(_turns(shape, chance, prompt))
    return Rollout(ordinal, group, turns)


def _turns(shape: Shape, chance: Random, prompt: tuple[int, ...]) -> Iterator[Turn]:
    for number in range(chance.randint(*shape.turns)):
        added = prompt if not number else _text(chance, chance.randint(*shape.observation))
        yield Turn(added, _length(shape, chance))


def _length(shape: Shape, chance: Random) -> int:
    drawn = shape.output_median * math.exp(chance.gauss(0.0, shape.output_sigma))
    return min(max(round(drawn), 1), shape.output_max)


def _text(chance: Random, length: int) -> tuple[int, ...]:
    return tuple(chance.randrange(TOKENS) for _ in range(length))
