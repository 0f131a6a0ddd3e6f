"""The environment package and the model: lengths follow from seeds alone."""

import asyncio
from pathlib import Path
from random import Random
from statistics import mean, median

import torch

from benchmarks.e2e import model
from benchmarks.e2e.delays.env import N_TASKS, Delays, Shape, gaps_of, shape_of
from benchmarks.e2e.runner import PACKAGE
from venusrl.env import Message, Rollout, Task
from venusrl.env.host.manifest import read_manifest
from venusrl.env.judge import NoJudge
from workers.models.check import check_folder
from workers.models.folder import load_decoder, read_folder

TASK = Task("train-0001", (Message("user", "abc"),), "")


def turns_of(seed: int) -> list[int]:
    shape = Shape(seed=seed)
    return [
        len(gaps_of(shape, f"train-{task}", Random(task * 8 + member))) + 1
        for task in range(200)
        for member in range(4)
    ]


def test_an_episode_is_the_same_for_equal_seed_task_and_member() -> None:
    shape = Shape()
    assert gaps_of(shape, "a", Random(1)) == gaps_of(shape, "a", Random(1))
    assert gaps_of(shape, "a", Random(1)) != gaps_of(shape, "a", Random(2))
    assert gaps_of(shape, "a", Random(1)) != gaps_of(Shape(seed=2), "a", Random(1))


def test_lengths_have_a_heavy_tail_within_their_limit() -> None:
    turns = turns_of(1)
    assert max(turns) == Shape().turns_max
    assert mean(turns) > median(turns)
    assert max(turns) >= 2 * median(turns)


def test_members_of_a_group_are_more_alike_than_rollouts_of_other_tasks() -> None:
    turns = turns_of(1)
    groups = [turns[start : start + 4] for start in range(0, len(turns), 4)]
    within = mean(max(group) - min(group) for group in groups)
    across = mean(max(part) - min(part) for part in zip(*groups[:4], strict=True))
    assert within < across * 1.5
    assert within > 0


def test_tools_take_drawn_times_within_their_limit() -> None:
    shape = shape_of({"seed": 3, "tool_s_max": 1.0})
    gaps = [gap for n in range(50) for gap in gaps_of(shape, f"t{n}", Random(n))]
    assert 0.0 < min(gap.tool_s for gap in gaps) < max(gap.tool_s for gap in gaps) == 1.0
    lengths = [len(gap.text) for gap in gaps]
    assert min(lengths) >= shape.observation_min
    assert max(lengths) <= shape.observation_max


def test_a_moved_episode_goes_on_as_the_one_that_it_was() -> None:
    first = Delays({}, Random(1), NoJudge())
    first.turns = 2
    second = Delays({}, Random(99), NoJudge())
    asyncio.run(second.restore(asyncio.run(first.snapshot())))
    assert (second.member, second.turns) == (first.member, 2)


def test_every_group_has_variance_whatever_was_said() -> None:
    environment = Delays({}, Random(1), NoJudge())
    rollouts = [Rollout("ro", index, TASK, (), "done", 1) for index in range(2)]
    assert [asyncio.run(environment.place(one)) for one in rollouts] == [0.0, 1.0]


def test_the_package_can_be_read_and_its_splits_share_no_prompt() -> None:
    assert read_manifest(PACKAGE).name == "delays"
    train, test = (list(Delays.load(split, {})) for split in ("train", "test"))
    assert len(train) == len(test) == N_TASKS
    assert len({task.prompt[0].content for task in [*train, *test]}) == 2 * N_TASKS


def test_the_model_finds_every_token_equally_likely_and_can_be_uploaded(tmp_path: Path) -> None:
    folder = model.build(tmp_path / "model")
    assert check_folder(folder).context_tokens == model.CONTEXT
    read = read_folder(folder)
    tokens = torch.tensor([read.vocabulary.encode("abc1+2;")])
    assert not load_decoder(read)(tokens).any()
    assert read.chat.stop_token_ids == read.vocabulary.encode(model.END)
    task = next(iter(Delays.load("train", {})))
    unknown = read.vocabulary.special("<unk>")
    assert unknown not in read.chat.prompt(task.prompt)
    assert unknown not in read.vocabulary.encode(
        "".join(gap.text for gap in gaps_of(Shape(), "a", Random(1)))
    )
