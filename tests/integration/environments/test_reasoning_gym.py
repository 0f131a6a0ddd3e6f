"""The adapter: any dataset, its own scorer, splits that share nothing."""

from typing import Any

import pytest

from tests.integration.environments.helpers import REASONING_GYM, rollout_of, running
from tests.support.requirements import requires
from venusrl.env.host.ports import EnvironmentRaised
from venusrl.env.messages import Message

pytest.importorskip("reasoning_gym")
pytestmark = requires("bwrap")

SUMS: dict[str, Any] = {
    "dataset": "chain_sum",
    "min_terms": 2,
    "max_terms": 2,
    "min_digits": 1,
    "max_digits": 1,
    "size": 500,
    "test_size": 100,
    "prompt": {"pattern": "problem: (.+) =", "replace": {" ": ""}},
}
"""Two hundred questions in all: fewer than asked for."""


async def test_splits_are_disjoint_though_questions_are_few() -> None:
    async with running(REASONING_GYM, SUMS) as environment:
        train, test = await environment.load("train"), await environment.load("test")
        assert train == await environment.load("train")
    prompts = {task.prompt for task in train}
    assert len(prompts) == len(train) > 100
    assert 10 < len({task.prompt for task in test}) == len(test) <= 100
    assert not prompts & {task.prompt for task in test}
    assert all(set(task.prompt[0].content) <= set("0123456789+-") for task in train)


async def test_the_datasets_own_scorer_decides() -> None:
    async with running(REASONING_GYM, SUMS) as environment:
        (task, *_) = await environment.load("test")
        answers = (str(task.answer), f" {task.answer}.0 ", "x", "")
        rollouts = [rollout_of(text, index, task) for index, text in enumerate(answers)]
        grades = await environment.grade(rollouts, 0, None)
    right, tolerated, wrong, empty = (grade.total for grade in grades)
    assert right == tolerated == 1.0
    assert wrong == empty == 0.0


async def test_the_first_answer_is_final() -> None:
    from venusrl.env.host.ports import InstanceKey

    async with running(REASONING_GYM, SUMS) as environment:
        (task, *_) = await environment.load("train")
        key = InstanceKey("ro_1", 1)
        await environment.open(key, task, 0, None)
        await environment.setup(key)
        assert (await environment.reply(key, 0, Message("assistant", "3"))).messages is None


@pytest.mark.parametrize("dataset", ["gcd", "word_sorting", "mini_sudoku", "knights_knaves"])
async def test_other_datasets_load_and_score_their_own_answers(dataset: str) -> None:
    config: dict[str, Any] = {"dataset": dataset, "size": 3, "test_size": 2}
    async with running(REASONING_GYM, config) as environment:
        tasks = await environment.load("train")
        assert len(tasks) == 3
        rollouts = [rollout_of(str(task.answer), n, task) for n, task in enumerate(tasks)]
        grades = await environment.grade(rollouts, 0, None)
    assert [grade.total for grade in grades] == [1.0, 1.0, 1.0]


async def test_a_composite_dataset_is_made_of_its_parts() -> None:
    parts = [{"name": "gcd", "weight": 1, "config": {}}, {"name": "lcm", "weight": 1, "config": {}}]
    config: dict[str, Any] = {"dataset": "composite", "datasets": parts, "size": 4}
    async with running(REASONING_GYM, config) as environment:
        assert len(await environment.load("train")) == 4


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"dataset": "chain_sums"}, "near names: chain_sum"),
        ({"dataset": "chain_sum", "min_term": 3}, "min_term"),
        ({"dataset": "chain_sum", "min_terms": 9, "max_terms": 2}, "refuses its config"),
        ({"dataset": "chain_sum", "size": 0}, "size must be a whole number"),
        ({"dataset": "chain_sum", "prompt": {"pattern": "("}}, "prompt.pattern"),
        ({"dataset": "chain_sum", "prompt": {"pattern": "never(x)"}}, "does not fit the question"),
    ],
)
async def test_a_bad_config_says_what_is_wrong(config: dict[str, Any], says: str) -> None:
    async with running(REASONING_GYM, config) as environment:
        with pytest.raises(EnvironmentRaised, match=says):
            await environment.load("train")
