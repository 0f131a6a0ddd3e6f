"""Tokens a second of the embedded engine and of the batched loop, on one core, turn and turn about.

All sides have the same model, prompts, tool outputs (which come at once) and lengths, sample greedily and
report log-probabilities. The engine is asked through its port, one coroutine a rollout, so that its thread,
its queue and the event loop are all paid for on the same core.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch

from benchmarks.engine import reference
from benchmarks.engine.figures import Spread, ratios, spread
from benchmarks.engine.models import build
from benchmarks.engine.reference import Answers, Kept
from benchmarks.engine.workload import EQUAL, RATE, Rollout, Shape, draw
from domain.engine import GenRequest, RequestId, Sampling
from domain.ids import GroupId, RolloutId
from workers.models.config import ModelConfig
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits

Play = Callable[[Sequence[Rollout]], Answers]
"""Plays a workload to its end."""

ROUNDS: Final = 5

DRAWN: Final = "drawn"
SHAPES: Final = {DRAWN: RATE, "one length": EQUAL}
"""Workloads by the lengths of their answers: the asked one, and a control that says where the ratio is from:
a static batch waits for its longest answer, and with answers of one length that costs nothing."""

PAGES_PER_ROLLOUT: Final = 96
"""1,536 tokens: nothing is evicted, as nothing is in the other side's cache."""


@dataclass(frozen=True, slots=True)
class Run:
    """One side over one workload."""

    tokens: int
    processor_s: float
    """Of all threads of the process."""
    wall_s: float
    answers: Answers

    @property
    def tokens_per_s(self) -> float:
        """Per second of processor time: what neighbours on a shared machine take does not count."""
        return self.tokens / self.processor_s


@dataclass(frozen=True, slots=True)
class RateFigures:
    """All rounds of one model."""

    model: str
    answers: str
    """Their lengths, by the name of the workload."""
    rollouts: int
    tokens: Spread
    engine: Spread
    dynamic: Spread
    """The loop over a cache that grows."""
    static: Spread
    """The loop over one that is allocated once."""
    ratio: Spread
    """Over the faster of the two in each round."""
    wall_ratio: Spread
    equal_turns: float
    """Share of turns with the same ids on all sides; in the others two logits were too close to call."""


@contextmanager
def one_core() -> Iterator[None]:
    """This thread, and those that it starts, on one core; torch computes in one thread."""
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


class EngineSide:
    """The embedded engine on an event loop of its own."""

    def __init__(self, name: str, path: Path, config: ModelConfig, rollouts: int) -> None:
        limits = EngineLimits(slots=rollouts, pages=PAGES_PER_ROLLOUT * rollouts)
        self._runner = asyncio.Runner()
        self._engine = EmbeddedEngine(name, build(config, path), limits)
        self._plays = 0

    def play(self, rollouts: Sequence[Rollout]) -> Answers:
        """All rollouts to their ends, every one as soon as it can."""
        self._plays += 1
        return self._runner.run(self._play(rollouts))

    def close(self) -> None:
        """Stop the engine."""
        self._runner.run(self._engine.close())
        self._runner.close()

    async def _play(self, rollouts: Sequence[Rollout]) -> Answers:
        played = await asyncio.gather(*(self._rollout(one) for one in rollouts))
        return {one.ordinal: answers for one, answers in zip(rollouts, played, strict=True)}

    async def _rollout(self, rollout: Rollout) -> list[tuple[int, ...]]:
        name = RolloutId(f"{self._plays}.{rollout.ordinal}")
        tokens: list[int] = []
        answers = []
        for number, turn in enumerate(rollout.turns):
            tokens.extend(turn.added)
            request = GenRequest(
                request_id=RequestId(f"{name}.{number}"),
                rollout_id=name,
                # A run of its own: what one round computed is no cache of the next.
                group_id=GroupId(f"{self._plays}.{rollout.group}"),
                tenant=str(self._plays),
                token_ids=tuple(tokens),
                sampling=Sampling(turn.output, temperature=0.0),
            )
            result = await self._engine.generate(request)
            assert len(result.logprobs) == turn.output, result
            tokens.extend(result.token_ids)
            answers.append(result.token_ids)
        self._engine.release(name)
        return answers


def measure(
    name: str, config: ModelConfig, folder: Path, *, rounds: int = ROUNDS, answers: str = DRAWN
) -> RateFigures:
    """Rounds of all sides, a seed each; which goes first rotates. Needs `transformers`."""
    shape = SHAPES[answers]
    with one_core():
        engine = EngineSide(name, folder, config, shape.rollouts)
        try:
            model = reference.load(folder)
            loops: list[Play] = [partial(reference.play, model, kept=kept) for kept in Kept]
            sides: list[Play] = [engine.play, *loops]
            warm = draw(shape, 0)[: shape.group_size]
            for play in sides:
                play(warm)
            played = [_round(sides, draw(shape, 1 + number), number) for number in range(rounds)]
        finally:
            engine.close()
    return figures((name, answers), shape, played)


def _round(sides: Sequence[Play], rollouts: Sequence[Rollout], first: int) -> list[Run]:
    order = [(first + at) % len(sides) for at in range(len(sides))]
    runs = {at: timed(sides[at], rollouts) for at in order}
    return [runs[at] for at in range(len(sides))]


def timed(play: Play, rollouts: Sequence[Rollout]) -> Run:
    """One side over one workload."""
    wall, processor = time.perf_counter(), time.process_time()
    answers = play(rollouts)
    processor_s, wall_s = time.process_time() - processor, time.perf_counter() - wall
    return Run(sum(one.sampled for one in rollouts), processor_s, wall_s, answers)


def figures(names: tuple[str, str], shape: Shape, rounds: Sequence[Sequence[Run]]) -> RateFigures:
    """Of rounds of the engine, the loop over a growing cache, and over a fixed one.

    `names` are those of model and workload.
    """
    ours, dynamic, static = ([one[at] for one in rounds] for at in range(3))
    best = [
        max(one, other, key=lambda run: run.tokens_per_s)
        for one, other in zip(dynamic, static, strict=True)
    ]
    equal = [
        equal_turns(mine.answers, one.answers)
        for loop in (dynamic, static)
        for mine, one in zip(ours, loop, strict=True)
    ]
    return RateFigures(
        model=names[0],
        answers=names[1],
        rollouts=shape.rollouts,
        tokens=spread([one.tokens for one in ours]),
        engine=_rates(ours),
        dynamic=_rates(dynamic),
        static=_rates(static),
        ratio=ratios([one.tokens_per_s for one in ours], [one.tokens_per_s for one in best]),
        wall_ratio=ratios([one.wall_s for one in best], [one.wall_s for one in ours]),
        equal_turns=min(equal),
    )


def _rates(runs: Sequence[Run]) -> Spread:
    return spread([one.tokens_per_s for one in runs])


def equal_turns(ours: Answers, others: Answers) -> float:
    """Share of turns with equal ids."""
    pairs = [
        (mine, theirs)
        for ordinal, turns in ours.items()
        for mine, theirs in zip(turns, others[ordinal], strict=True)
    ]
    return sum(mine == theirs for mine, theirs in pairs) / len(pairs)
