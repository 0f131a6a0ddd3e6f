"""The adapter's own rules, without a process: splits, prompts, scores, refusals."""

from random import Random
from typing import Any

import pytest

from venusrl.env import Message, Rollout, Task, ToolCall, Turn, Unscorable
from venusrl.env._runner.remote_sandbox import RemoteSandbox
from venusrl.env.judge import NoJudge
from venusrl.env.sandbox import SandboxRequest, SandboxResult

pytest.importorskip("reasoning_gym")

from environments.adapters.reasoning_gym import BadConfig, ReasoningGym

CONFIG: dict[str, Any] = {"dataset": "gcd", "size": 20, "test_size": 5, "seed": 3}


def tasks(split: str, config: dict[str, Any]) -> list[Task]:
    return list(ReasoningGym.load(split, config))


async def score(task: Task, answer: str, config: dict[str, Any] = CONFIG) -> object:
    rollout = Rollout("ro", 0, task, (*task.prompt, Message("assistant", answer)), "done", 1)
    return await ReasoningGym(config, Random(0), NoJudge()).score(rollout)


def test_splits_have_the_asked_sizes_and_share_no_question() -> None:
    train, test = tasks("train", CONFIG), tasks("test", CONFIG)
    assert (len(train), len(test)) == (20, 5)
    assert not {task.prompt for task in train} & {task.prompt for task in test}
    assert len({task.id for task in [*train, *test]}) == 25


def test_a_seed_gives_the_same_tasks_and_another_seed_others() -> None:
    assert tasks("train", CONFIG) == tasks("train", CONFIG)
    assert tasks("train", CONFIG) != tasks("train", {**CONFIG, "seed": 1000})


def test_no_question_stands_in_train_under_one_seed_and_in_test_under_another() -> None:
    few = {**CONFIG, "min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 9}
    train = {task.prompt for task in tasks("train", {**few, "size": 60})}
    test = {task.prompt for task in tasks("test", {**few, "seed": 77, "test_size": 60})}
    assert train
    assert test
    assert not train & test


async def test_the_score_is_the_datasets_own() -> None:
    (task, *_) = tasks("train", CONFIG)
    assert await score(task, f" {task.answer}\n") == 1.0
    assert await score(task, "no") == 0.0


async def test_a_prompt_is_cut_and_rewritten_and_still_scored() -> None:
    prompt = {"pattern": r"numbers: (.+?)\.", "replace": {", ": "+"}}
    config = {**CONFIG, "prompt": prompt}
    (task, *_) = tasks("train", config)
    assert set(task.prompt[0].content) <= set("0123456789+")
    assert await score(task, str(task.answer), config) == 1.0


async def test_a_task_that_another_config_made_is_unscorable_not_zero() -> None:
    (task, *_) = tasks("train", CONFIG)
    found = await score(task, "1", {**CONFIG, "seed": 99})
    assert isinstance(found, Unscorable)
    assert found.reason == "not_reproducible"


async def test_a_tool_call_does_not_prolong_the_episode() -> None:
    async def call(request: SandboxRequest) -> SandboxResult:
        raise AssertionError("no sandbox is asked")

    message = Message("assistant", "", (ToolCall("c", "calculator", "{}"),))
    environment = ReasoningGym(CONFIG, Random(0), NoJudge())
    assert await environment.reply(Turn(0, message, (), RemoteSandbox(call))) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": "nothing"},
        {"dataset": None},
        {"size": 0},
        {"size": True},
        {"size": "many"},
        {"seed": -1},
        {"min_value": 10, "max_value": 1},
        {"unknown_key": 1},
        {"prompt": "x"},
        {"prompt": {"pattern": "("}},
        {"prompt": {"pattern": "x"}},
        {"prompt": {"replace": []}},
        {"prompt": {"pattern": "never (here)"}},
    ],
)
def test_a_bad_config_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        tasks("train", {**CONFIG, **change})


def test_there_is_no_third_split() -> None:
    with pytest.raises(BadConfig, match="no split"):
        tasks("validation", CONFIG)
