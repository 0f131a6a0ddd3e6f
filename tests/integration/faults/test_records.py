"""F1, F3-F5, F9, F11, F13, F14: what was sampled is what is trained, however an episode goes.

One job of three groups whose eight members each play another story by a script, one of a group size
of one, one whose engine reports a log-probability that is no number.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.integration.faults.jobs import (
    Platform,
    assert_no_trained_failure,
    assert_one_point_per_step,
    chaos_job,
    member,
    said,
    vocabulary,
)
from tests.support.requirements import requires
from venusrl.client import JobFailed, JobPaused
from venusrl.models.jobs import Job
from venusrl.models.rollouts import Rollout, Trajectory

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]

CONTEXT: Final = 80
GROUP: Final = 8
PROMPT: Final = len("^12+07=")
CALL: Final = "c12+" + "7".zfill(16) + ";"
"""A call of 21 tokens; with its reply of 4 two of them and a prompt leave 23 tokens."""

PAD: Final = vocabulary().pad_id
UNKNOWN: Final = vocabulary().special("<unk>")

OVERFLOW, CUT, EXACT, UNTERMINATED, SPLIT, UNLIKELY, BAD, EMPTY = range(GROUP)
"""Places of the stories in a group."""


def spelt(text: str, *token_ids: int) -> dict[str, Any]:
    """An answer in which tokens stand that no tokenizer gives for the text they are shown as."""
    ids = list(vocabulary().encode(text))
    return {"token_ids": [*ids[:-1], *token_ids, ids[-1]]}


EXACT_ANSWER: Final = "a" + "1" * (CONTEXT - PROMPT - 2 * (len(CALL) + 4) - 2) + ";"

STORIES: Final = {
    OVERFLOW: [said(CALL)],
    CUT: [said("a" + "1" * 20, finish="length")],
    EXACT: [said(CALL), said(CALL), said(EXACT_ANSWER, finish="length")],
    UNTERMINATED: [said("c12+07"), said("a99;")],
    SPLIT: [spelt("c12+07;", PAD), spelt("c12;", UNKNOWN, PAD), spelt("a9;", UNKNOWN)],
    UNLIKELY: [said("a99;", logprobs=[-100.0, -100.0, -0.001, -0.001])],
    BAD: [said("a+;")],
    EMPTY: [said("c;"), said("a99;")],
}

HEALTHY, SOME_NONE, SOME_FAIL = "train-0000", "train-0001", "train-0002"


@dataclass(frozen=True, slots=True)
class Jobs:
    """The three jobs, started together."""

    platform: Platform
    stories: Job
    alone: Job
    poisoned: Job

    def member(self, index: int) -> tuple[Rollout, Trajectory]:
        """A member of the healthy group with its record."""
        self.platform.succeeded(self.stories)
        found = self.platform.rollouts(self.stories, task_id=HEALTHY)
        (one,) = [each for each in found if each.index == index]
        return one, self.platform.client.rollouts.trajectory(one.id)


@pytest.fixture(scope="module")
def jobs(platform: Platform) -> Iterator[Jobs]:
    """All three, for as long as this file's tests run."""
    config = {"by_task": {SOME_NONE: {"reward_none": 0.3}, SOME_FAIL: {"raise": 0.25}}}
    stories = chaos_job(
        "stories",
        config,
        model={"base": "tiny-calc", "context_tokens": CONTEXT},
        rollout={
            "group_size": GROUP,
            "groups_per_batch": 3,
            "sampling": {"temperature": 1.0, "max_tokens_per_turn": 24},
            "on_failure": {"tries": 1, "min_group_size": 2},
        },
    )
    alone = chaos_job(
        "alone",
        {},
        rollout={"group_size": 1, "groups_per_batch": 2},
        algorithm={"on_no_signal": "pause"},
    )
    poisoned = chaos_job("poisoned", {}, rollout={"group_size": 2, "groups_per_batch": 1})
    no_number = said("a99;", logprobs=[-0.1, math.nan, -0.1, -0.1])
    with (
        platform.running(stories, {member(i): story for i, story in STORIES.items()}) as first,
        platform.running(alone, {member(0): [said("a99;")]}) as second,
        platform.running(poisoned, {member(0): [no_number], member(1): [said("a+;")]}) as third,
    ):
        yield Jobs(platform, first, second, third)


def sampled(trajectory: Trajectory) -> list[int]:
    """Ids with a loss, in order."""
    (segment,) = trajectory.segments
    pairs = zip(segment.token_ids, segment.mask, strict=True)
    return [token for token, mask in pairs if mask == 1]


@pytest.mark.parametrize("index", STORIES)
def test_sampled_ids_are_recorded_verbatim_and_only_they_have_a_loss(
    jobs: Jobs, index: int
) -> None:
    """F1, F3: the ids that the engine gave, the end token and a padding token among them."""
    one, trajectory = jobs.member(index)
    (segment,) = trajectory.segments
    turns = [STORIES[index][min(n, len(STORIES[index]) - 1)] for n in range(one.turns)]
    assert sampled(trajectory) == [token for turn in turns for token in turn["token_ids"]]
    for mask, logprob, version in zip(
        segment.mask, segment.logprobs, segment.versions, strict=True
    ):
        assert (mask == 1) == (version >= 0) == (logprob != 0.0)
    assert len(segment.token_ids) == len(segment.mask) == one.tokens
    assert one.sampled_tokens == sum(segment.mask)
    drift = {name: value for name, value in trajectory.metrics.items() if "drift" in name}
    assert set(drift.values()) <= {0.0}


@pytest.mark.parametrize("index", STORIES)
def test_each_turn_begins_where_the_last_one_ended(jobs: Jobs, index: int) -> None:
    """F1: one buffer that only grows; spans tile it without gap or overlap."""
    _, trajectory = jobs.member(index)
    place = PROMPT
    for turn in trajectory.turns:
        assert turn["start"] == place
        assert turn["start"] < turn["sampled_end"] <= turn["end"]
        place = turn["end"]
    assert place == len(trajectory.segments[0].token_ids)


def test_a_reply_that_leaves_no_room_at_turn_three_is_named(jobs: Jobs) -> None:
    """F4: decided before the engine is asked; the guilty message is in the cause."""
    one, trajectory = jobs.member(OVERFLOW)
    assert (one.end, one.turns, one.current_try) == ("context_overflow", 3, 1)
    assert "the reply of turn 2: message 0 (tool, call call_2_0)" in (one.cause or "")
    assert one.tokens <= CONTEXT
    assert trajectory.messages[-1]["role"] == "tool"


def test_a_turn_cut_by_its_limit_is_truncated_and_no_parse_error(jobs: Jobs) -> None:
    one, _ = jobs.member(CUT)
    assert (one.end, one.cause, one.verdict) == ("truncated", "max_tokens_per_turn", "scored")


def test_a_final_answer_that_ends_at_the_limit_is_done(jobs: Jobs) -> None:
    one, trajectory = jobs.member(EXACT)
    assert (one.end, one.turns, one.tokens) == ("done", 3, CONTEXT)
    assert trajectory.messages[-1]["content"] == EXACT_ANSWER[1:-1]


@pytest.mark.parametrize(("index", "reason"), [(UNTERMINATED, "unterminated"), (EMPTY, "empty")])
def test_a_malformed_call_is_answered_under_its_id_and_the_rollout_goes_on(
    jobs: Jobs, index: int, reason: str
) -> None:
    """F5."""
    one, trajectory = jobs.member(index)
    assert (one.end, one.reward, one.turns) == ("done", 0.0, 2)
    asked, replied = trajectory.messages[1:3]
    assert [call["id"] for call in asked["tool_calls"]] == [replied["tool_call_id"]]
    assert replied["content"].startswith(f"error: {reason}")


def test_members_without_a_verdict_shrink_their_group_and_the_others_are_trained(
    jobs: Jobs,
) -> None:
    """F9, F11: one None, or one failure, costs its own member and nobody else."""
    jobs.platform.succeeded(jobs.stories)
    counted = 0
    for task, unusable in ((HEALTHY, None), (SOME_NONE, "bad_type"), (SOME_FAIL, "env_failed")):
        (group,) = jobs.platform.groups(jobs.stories, task_id=task)
        rollouts = jobs.platform.rollouts(jobs.stories, task_id=task)
        scored = [one for one in rollouts if one.verdict == "scored"]
        lost = [one for one in rollouts if one.verdict != "scored"]
        assert group.disposition == "trained(1)"
        assert group.usable == len(scored)
        assert (len(lost) > 0) == (unusable is not None)
        assert {one.unscorable_reason for one in lost} <= {unusable}
        assert {one.disposition for one in scored} == {"trained(1)"}
        assert sum(one.advantage or 0.0 for one in scored) == pytest.approx(0.0, abs=1e-6)
        mean = sum(one.reward or 0.0 for one in scored) / len(scored)
        assert group.mean_reward == pytest.approx(mean)
        counted += len(scored)
    (point,) = jobs.platform.client.jobs.metrics(jobs.stories.id, names=["rollouts"])
    assert point.value == counted
    assert_no_trained_failure(jobs.platform, jobs.stories)
    assert_one_point_per_step(jobs.platform, jobs.stories)


def test_a_log_ratio_of_a_hundred_gives_finite_figures_and_is_counted(jobs: Jobs) -> None:
    """F13: the exponent's input is bounded, and how often is reported."""
    jobs.platform.succeeded(jobs.stories)
    points = {
        point.name: point.value for point in jobs.platform.client.jobs.metrics(jobs.stories.id)
    }
    assert points["log_ratio_bounded"] >= 2.0
    assert all(math.isfinite(value) for value in points.values())


def test_a_version_of_the_ledger_is_that_of_its_tokens(jobs: Jobs) -> None:
    """F14."""
    for index in STORIES:
        one, trajectory = jobs.member(index)
        versions = [v for v in trajectory.segments[0].versions if v >= 0]
        assert (one.oldest_version, one.newest_version) == (min(versions), max(versions))


def test_groups_of_one_have_no_signal_and_the_job_says_so(jobs: Jobs) -> None:
    """F9, F12: zero advantage, never a division by a deviation that is not there."""
    paused = jobs.platform.settled(jobs.alone)
    assert paused.state == "paused"
    with pytest.raises(JobPaused, match="no_signal"):
        jobs.platform.client.jobs.wait(jobs.alone.id)
    for group in jobs.platform.groups(jobs.alone):
        assert group.disposition in ("dropped(zero_variance)", "pending"), group
    for one in jobs.platform.client.rollouts.list(jobs.alone.id, verdict="scored"):
        assert (one.reward, one.advantage) in ((0.0, 0.0), (0.0, None))
    (noted,) = jobs.platform.client.jobs.events(jobs.alone.id, types=["job.no_signal"])
    known = {group.id for group in jobs.platform.groups(jobs.alone)}
    assert set(noted.body["groups"].split()) <= known


def test_a_value_that_is_no_number_stops_the_step_and_names_its_rollout(jobs: Jobs) -> None:
    """F9, F22: nothing of it reaches the weights; poll, stream and client say the same cause."""
    failed = jobs.platform.settled(jobs.poisoned)
    assert failed.state == "failed"
    with pytest.raises(JobFailed) as caught:
        jobs.platform.client.jobs.wait(jobs.poisoned.id)
    (guilty,) = [one for one in jobs.platform.rollouts(jobs.poisoned) if one.index == 0][:1]
    assert (caught.value.code, caught.value.component) == ("diverged", "trainer")
    assert guilty.id in (caught.value.hint or "")
    with pytest.raises(JobFailed, match="diverged"):
        deque(jobs.platform.client.jobs.follow(jobs.poisoned.id), maxlen=0)
    last = [*jobs.platform.client.jobs.events(jobs.poisoned.id, types=["job.state"])][-1]
    assert (last.body["state"], last.body["failure_code"]) == ("failed", "diverged")
    assert not [
        one for one in jobs.platform.rollouts(jobs.poisoned) if "trained" in one.disposition
    ]
