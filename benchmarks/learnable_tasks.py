"""Tasks of the two built-in models, as plain functions, for `benchmarks.inprocess_rl`."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final

import reasoning_gym

from environments.adapters.reasoning_gym import ReasoningGym
from venusrl.env.messages import Json, Task
from workers.models.build.tiny_calc import operands

CALC_BAD_FORMAT: Final = -0.2
"""Reward of an answer that is no number, and of a rollout without an answer."""

TEXT_CONFIG: Final[dict[str, Json]] = {
    "dataset": "chain_sum",
    "size": 160,
    "test_size": 40,
    "min_terms": 2,
    "max_terms": 2,
    "min_digits": 1,
    "max_digits": 1,
}
"""The easy configuration: 200 distinct questions, split by the adapter into disjoint parts."""


@dataclass(frozen=True, slots=True)
class LearnableTask:
    """A prompt, its tool and its score."""

    prompt: str
    max_tokens: int
    bad_format: float
    score: Callable[[str], float]
    tool: Callable[[str], str]


def task_source(model: str, is_test: bool = False) -> Callable[[Random], LearnableTask]:
    """Where tasks of this model come from."""
    if model == "tiny-calc":
        return _calc_task
    assert model == "tiny-text", f"no tasks for {model}"
    return lambda rng: _text_task(rng, is_test)


def _calc_task(rng: Random) -> LearnableTask:
    numbers = operands(rng)
    expected = f"{sum(numbers):02d}"

    def score(answer: str) -> float:
        if not answer.isascii() or not answer.isdigit():
            return CALC_BAD_FORMAT
        return float(answer == expected)

    prompt = "+".join(f"{n:02d}" for n in numbers)
    return LearnableTask(prompt, 8, CALC_BAD_FORMAT, score, _calculator)


def _calculator(arguments: str) -> str:
    left, _, right = str(json.loads(arguments)["expression"]).partition("+")
    if not (left.isdigit() and right.isdigit()):
        return ""
    return f"{int(left) + int(right):02d}"


@cache
def _text_tasks(is_test: bool) -> tuple[Task, ...]:
    return tuple(ReasoningGym.load("test" if is_test else "train", TEXT_CONFIG))


@cache
def _text_dataset() -> "reasoning_gym.dataset.ProceduralDataset":
    return reasoning_gym.create_dataset("chain_sum", size=1, seed=0)


def _text_task(rng: Random, is_test: bool) -> LearnableTask:
    task = rng.choice(_text_tasks(is_test))
    entry = {"answer": task.answer}
    return LearnableTask(
        prompt=task.prompt[0].content,
        max_tokens=8,
        bad_format=0.0,
        score=lambda answer: float(_text_dataset().score_answer(answer=answer, entry=entry)),
        tool=lambda arguments: "",
    )
