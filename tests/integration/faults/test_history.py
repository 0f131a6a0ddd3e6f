"""F2: histories that are written anew, by an environment and by a chat template, are trained whole.

The model is `tiny-calc` with a chat template that leaves earlier reasoning out (`^...=` before an
answer), the environment compacts its conversation after a call and asks again after an answer.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.faults.jobs import (
    Platform,
    assert_no_trained_failure,
    job_spec,
    member,
    said,
    vocabulary,
)
from tests.support.requirements import requires
from venusrl.client import Invalid
from venusrl.models.jobs import Job
from venusrl.models.models import ModelInfo
from venusrl.models.rollouts import Segment, Trajectory
from workers.models.folder import builtin_path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]

RETELLING: Final = Path(__file__).resolve().parents[2] / "support" / "retelling"

CALLS, THINKS, PLAIN, ENDS = range(4)
"""Members of a group."""

STORIES: Final = {
    CALLS: [said("c1+1;"), said("a1;"), said("a2;")],
    THINKS: [said("^7=a1;"), said("^8=c1+1;"), said("^9=a2;")],
    PLAIN: [said("a1;"), said("a1;"), said("a7;")],
    ENDS: [said("^7=a1;"), said("a" + "1" * 15, finish="length")],
}

SEGMENTS: Final = {
    CALLS: ["^1+1=c1+1;", "^2=a1;^3=a2;"],
    THINKS: ["^1+1=^7=a1;", "^1+1=a1;^3=^8=c1+1;", "^2=^9=a2;"],
    PLAIN: ["^1+1=a1;^3=a1;^3=a7;"],
    ENDS: ["^1+1=^7=a1;", "^1+1=a1;^3=a" + "1" * 15],
}

LOSSES: Final = {
    CALLS: ["c1+1;", "a1;a2;"],
    THINKS: ["^7=a1;", "^8=c1+1;", "^9=a2;"],
    PLAIN: ["a1;a1;a7;"],
    ENDS: ["^7=a1;", "a" + "1" * 15],
}


@pytest.fixture(scope="module")
def thinking(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    """The model with its template, and the environment beside it."""
    platform.client.environments.push(RETELLING)
    folder = tmp_path_factory.mktemp("thinking")
    for file in builtin_path("tiny-calc").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    chat = json.loads((folder / "chat.json").read_text())
    chat["reasoning"] = {"open": "^", "close": "=", "history": "drop"}
    (folder / "chat.json").write_text(json.dumps(chat))
    return platform.client.models.upload("thinking", folder)


def spec(name: str, thinking: ModelInfo, choice: str, **changes: Any) -> dict[str, Any]:
    """One step of two groups."""
    return job_spec(
        name,
        model={"base": thinking.ref, "on_history_rewrite": choice},
        environments=[{"ref": "retelling", "shuffle": False}],
        **changes,
    )


@pytest.fixture(scope="module")
def job(platform: Platform, thinking: ModelInfo) -> Iterator[Job]:
    """A job that opens segments."""
    script = {member(index): story for index, story in STORIES.items()}
    with platform.running(spec("segments", thinking, "segment"), script) as started:
        platform.succeeded(started)
        yield started


def trajectory(platform: Platform, job: Job, index: int) -> Trajectory:
    """Of one member of the first group."""
    (one,) = [each for each in platform.rollouts(job, task_id="train-0") if each.index == index]
    return platform.client.rollouts.trajectory(one.id)


def text(token_ids: list[int]) -> str:
    return vocabulary().decode(token_ids)


def trained(segment: Segment) -> str:
    """Text of the tokens with a loss."""
    pairs = zip(segment.token_ids, segment.mask, strict=True)
    return text([token for token, mask in pairs if mask])


def test_validation_says_that_the_template_rewrites_and_leaves_the_choice(
    platform: Platform, thinking: ModelInfo
) -> None:
    for choice in ("segment", "keep"):
        body = {**spec("x", thinking, choice), "environments": [{"ref": "calc"}]}
        report = platform.client.jobs.validate(body)
        assert [(one.code, one.severity) for one in report.findings] == [
            ("template_rewrites_history", "warning")
        ]
        assert report.spec is not None
    with pytest.raises(Invalid) as refused:
        platform.client.jobs.create(spec("x", thinking, "keep"))
    assert "history_rewritten" in str(refused.value.errors)


@pytest.mark.parametrize("index", STORIES)
def test_each_history_is_a_segment_and_each_sampled_token_is_trained_in_one(
    platform: Platform, job: Job, index: int
) -> None:
    record = trajectory(platform, job, index)
    assert [text(segment.token_ids) for segment in record.segments] == SEGMENTS[index]
    assert [trained(segment) for segment in record.segments] == LOSSES[index]
    said_ids = [token for answer in STORIES[index] for token in answer["token_ids"]]
    assert sum(sum(segment.mask) for segment in record.segments) == len(said_ids)
    for turn in record.turns:
        ids = record.segments[turn["segment"]].token_ids[turn["start"] : turn["sampled_end"]]
        assert ids == STORIES[index][turn["turn"]]["token_ids"]


def test_the_reward_of_a_rollout_is_shared_once_and_every_sampled_token_counts_once(
    platform: Platform, job: Job
) -> None:
    rollouts = platform.rollouts(job, task_id="train-0")
    assert {one.index: one.reward for one in rollouts} == {CALLS: 1, THINKS: 1, PLAIN: 0, ENDS: 0}
    assert len({one.advantage for one in rollouts}) == 2
    tokens = [p.value for p in platform.client.jobs.metrics(job.id, names=["tokens"])]
    assert tokens == [sum(one.sampled_tokens for one in platform.rollouts(job))]
    assert_no_trained_failure(platform, job)


def test_the_conversation_shows_where_it_began_anew(platform: Platform, job: Job) -> None:
    calls, thinks = (trajectory(platform, job, index) for index in (CALLS, THINKS))
    assert [m["content"] for m in calls.messages] == ["1+1", "c1+1;", "2", "1", "3", "2"]
    assert calls.rewrites == [2]
    assert thinks.rewrites == [4]
    said_before = [m.get("reasoning") for m in thinks.messages if m["role"] == "assistant"]
    assert said_before == ["7", "8", "9"]


def test_exports_hold_every_segment_as_a_chain(
    platform: Platform, job: Job, tmp_path: Path
) -> None:
    platform.client.rollouts.export(job.id, tmp_path / "all.jsonl")
    records = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    one = next(r for r in records if r["index"] == THINKS and r["task_id"] == "train-0")
    assert {node["segment"] for node in one["nodes"]} == {0, 1, 2}
    first = [node for node in one["nodes"] if node["parent"] is None]
    assert [node["segment"] for node in first] == [0, 1, 2]
    assert one["rewrites"] == [4]


def test_a_job_that_keeps_its_history_trains_one_segment(
    platform: Platform, thinking: ModelInfo
) -> None:
    body = spec("kept", thinking, "keep")
    body["environments"] = [{"ref": "chaos", "shuffle": False}]
    script = {member(0): [said("^7=a1;")], member(1): [said("a+;")]}
    with platform.running({**body, "rollout": {**body["rollout"], "group_size": 2}}, script) as job:
        platform.succeeded(job)
        for one in platform.rollouts(job):
            (segment,) = platform.client.rollouts.trajectory(one.id).segments
            assert trained(segment) == ("^7=a1;" if one.index == 0 else "a+;")
