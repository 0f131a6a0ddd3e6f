"""Episodes whose number of turns, tool delays and tool outputs are drawn, whatever the model says.

A task draws a length, each of its rollouts stretches it: both lognormal, so that a few rollouts are many
times as long as most. The platform seeds a rollout by the job's seed, its place in the order of tasks and
its place in the group, so jobs of one seed play the same episodes under every strategy. A tool sleeps in
the rollout's own sandbox.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from venusrl.env import (
    Environment,
    Json,
    JudgeClient,
    Message,
    Rollout,
    Sandbox,
    SandboxError,
    Task,
    Turn,
    Value,
    reward,
)

N_TASKS = 256
"""More than any run of the benchmark trains, so that no task comes twice."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
"""Prompts and tool outputs are written with; one token each."""


@dataclass(frozen=True)
class Shape:
    """The job's `config`."""

    seed: int = 1
    turns_median: float = 8.0
    turns_sigma: float = 0.5
    """Of the logarithm of a task's length."""
    member_sigma: float = 0.4
    """Of the logarithm by which a rollout stretches its task's length."""
    turns_max: int = 20
    prompt: int = 1024
    """Characters."""
    observation_min: int = 100
    observation_max: int = 300
    tool_s_median: float = 0.12
    tool_s_sigma: float = 1.0
    tool_s_max: float = 2.0


@dataclass(frozen=True)
class Gap:
    """What lies between two answers: how long the tool takes, and what it says."""

    tool_s: float
    text: str


def shape_of(config: Mapping[str, Json]) -> Shape:
    """The numbers that a config sets, the others by default."""
    return Shape(**dict(config))  # type: ignore[arg-type]


def gaps_of(shape: Shape, task_id: str, member: Random) -> tuple[Gap, ...]:
    """The gaps of one rollout; it has one answer more. `member` is its own source of chance."""
    base = Random(f"{shape.seed}/{task_id}").gauss(0.0, shape.turns_sigma)
    stretch = member.gauss(-(shape.member_sigma**2) / 2, shape.member_sigma)
    turns = round(shape.turns_median * math.exp(base + stretch))
    count = min(max(turns, 1), shape.turns_max) - 1
    return tuple(_gap(shape, member) for _ in range(count))


def _gap(shape: Shape, chance: Random) -> Gap:
    tool_s = shape.tool_s_median * math.exp(chance.gauss(0.0, shape.tool_s_sigma))
    length = chance.randint(shape.observation_min, shape.observation_max)
    return Gap(round(min(tool_s, shape.tool_s_max), 3), text_of(chance, length))


def text_of(chance: Random, length: int) -> str:
    """So many drawn letters."""
    return "".join(chance.choice(LETTERS) for _ in range(length))


class Delays(Environment):
    """One episode."""

    def __init__(self, config: Mapping[str, Json], rng: Random, judge: JudgeClient) -> None:
        super().__init__(config, rng, judge)
        self.member = rng.getrandbits(64)
        self.turns = 0

    @classmethod
    def load(cls, split: str, config: Mapping[str, Json]) -> Iterable[Task]:
        """Prompts of drawn letters; the members of a group share theirs."""
        shape = shape_of(config)
        for number in range(N_TASKS):
            name = f"{split}-{number:04d}"
            text = text_of(Random(f"{shape.seed}/{name}/prompt"), shape.prompt)
            yield Task(name, (Message("user", text),), "")

    async def setup(self, task: Task, sandbox: Sandbox) -> None:
        """Make the tool known in the sandbox's interpreter."""
        await run(sandbox, "import time")

    async def reply(self, turn: Turn) -> Sequence[Message] | None:
        """Let the tool of this gap take its time; None after the last answer."""
        gaps = gaps_of(shape_of(self.config), self.task.id, Random(self.member))
        if self.turns == len(gaps):
            return None
        gap = gaps[self.turns]
        self.turns += 1
        await run(turn.sandbox, f"time.sleep({gap.tool_s})")
        return [Message("user", gap.text)]

    async def snapshot(self) -> Json:
        """Whose episode it is, and how far it is."""
        return [self.member, self.turns]

    async def restore(self, state: Json) -> None:
        """Go on there."""
        assert isinstance(state, list)
        member, turns = state
        assert isinstance(member, int)
        assert isinstance(turns, int)
        self.member, self.turns = member, turns

    @reward(weight=1.0, timeout_s=30)
    async def place(self, rollout: Rollout) -> Value:
        """One for every other member: no group is without variance, so none is drawn besides."""
        return float(rollout.index % 2)


async def run(sandbox: Sandbox, source: str) -> None:
    """Run statements; what fails in a healthy sandbox loses the try."""
    result = await sandbox.python(source)
    if result.exit_code != 0:
        raise SandboxError("lost", result.stderr.decode(errors="replace"))
