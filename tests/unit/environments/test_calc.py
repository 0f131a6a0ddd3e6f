"""The calc package: disjoint tasks from its generator, and its verdicts."""

import importlib.util
import json
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

import environments
from venusrl.env import Message, Rollout, Task, ToolCall
from venusrl.env.judge import NoJudge

FOLDER = Path(environments.__file__).parent / "builtin" / "calc"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"calc_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def tasks(split: str) -> list[dict[str, str]]:
    lines = (FOLDER / "tasks" / f"{split}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    generator = module("generate_tasks")
    train, test = generator.make_tasks(Random(generator.SEED))
    for split, found in (("train", train), ("test", test)):
        generator.write(tmp_path / split, split, found)
        written = (FOLDER / "tasks" / f"{split}.jsonl").read_bytes()
        assert (tmp_path / split).read_bytes() == written


def test_splits_share_no_sum_in_any_order() -> None:
    train, test = (
        {tuple(sorted(task["prompt"].split("+"))) for task in tasks(split)}
        for split in ("train", "test")
    )
    assert len(tasks("train")) >= 2000
    assert len(tasks("test")) >= 512
    assert not train & test


def test_every_task_fits_the_format_of_the_tiny_model() -> None:
    for task in [*tasks("train"), *tasks("test")]:
        operands = task["prompt"].split("+")
        assert 2 <= len(operands) <= 4
        assert all(len(operand) == 2 and operand.isdigit() for operand in operands)
        assert task["answer"] == f"{sum(map(int, operands)):02d}"
        assert len(task["answer"]) == 2


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (Message("assistant", "42"), 1.0),
        (Message("assistant", "43"), 0.0),
        (Message("assistant", "042"), 0.0),
        (Message("assistant", ""), -0.2),
        (Message("assistant", "a42;"), -0.2),
        (Message("assistant", "4²"), -0.2),
        (Message("assistant", "42", (ToolCall("c", "calculator", "{}"),)), -0.2),
        (Message("tool", "42", tool_call_id="c"), -0.2),
    ],
)
async def test_only_a_last_message_of_digits_is_an_answer(last: Message, expected: float) -> None:
    prompt = (Message("user", "12+30"),)
    rollout = Rollout("ro", 0, Task("t", prompt, "42"), (*prompt, last), "done", 1)
    environment = module("env").Calc({}, Random(0), NoJudge())
    assert await environment.correct(rollout) == expected
