"""What the demo concludes from what the API says; its options and its stop."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor import demo
from supervisor.demo import ENVIRONMENT, SPEC, Options
from supervisor.demo_platform import Platform, PlatformFailed
from supervisor.demo_report import (
    Start,
    Summary,
    failure_lines,
    look,
    report,
    summarize,
    verdict,
)
from supervisor.layout import Layout
from supervisor.up import holding_lock
from tests.support.scripted_api import Answer, Body, evaluation, job_json, page, scripted_api
from venusrl._spec import read_spec
from venusrl.cli.watch import Progress, Snapshot
from venusrl.client import Client
from venusrl.models.job_spec import JobSpec
from venusrl.models.jobs import Job

BEGAN = datetime(2026, 11, 29, 11, 59, 50, tzinfo=UTC)

CHECKPOINT: Mapping[str, Any] = {
    "id": "ckpt_1", "job_id": "job_1", "attempt_id": "att_1", "step": 45, "state": "ready",
    "reason": "end", "weights_sha": "ab", "files": [], "created_at": "2026-11-29T12:01:40Z",
}  # fmt: skip

FIRST_STEP: Mapping[str, Any] = {
    "id": 3, "type": "step.committed", "body": {"step": 1}, "created_at": "2026-11-29T12:00:10Z",
}  # fmt: skip
LAST_STEP: Mapping[str, Any] = {
    "id": 9, "type": "step.committed", "body": {"step": 45}, "created_at": "2026-11-29T12:01:31Z",
}  # fmt: skip

ROLLOUT: Mapping[str, Any] = {
    "id": "ro_1", "group_id": "grp_1", "job_id": "job_1", "attempt_id": "att_1", "index": 0,
    "purpose": "evaluation", "bucket": "evaluation",
    "task_id": "test-0000", "current_try": 1, "hop": 1, "end": "done", "verdict": "scored",
    "reward": 1.0, "disposition": "evaluated(45)", "turns": 2, "tokens": 20, "sampled_tokens": 9,
    "created_at": "2026-11-29T12:01:31Z",
}  # fmt: skip

TRAJECTORY: Mapping[str, Any] = {
    "rollout_id": "ro_1", "end": "done", "segments": [], "turns": [],
    "messages": [
        {"role": "user", "content": "12+07"},
        {"role": "assistant", "content": "c12+07;"},
        {"role": "tool", "content": "19"},
        {"role": "assistant", "content": "19"},
    ],
}  # fmt: skip

OPERATION: Mapping[str, Any] = {
    "id": "op_1", "kind": "generate", "state": "done", "created_at": "2026-11-29T12:01:45Z",
    "result": {"text": "c12+07;", "content": "", "tool_calls": [], "finish": "stop",
               "prompt_tokens": 7, "sampled_tokens": 7, "weights_sha": "ab"},
}  # fmt: skip


def routes(
    evaluations: Sequence[Mapping[str, Any]], job: Mapping[str, Any] | None = None
) -> dict[str, Sequence[Body | Answer]]:
    """An API that knows one ended job."""
    return {
        "GET /v1/jobs/job_1": [job or job_json()],
        "GET /v1/jobs/job_1/evaluations": [page(*evaluations)],
        "GET /v1/jobs/job_1/checkpoints": [page({**CHECKPOINT, "step": 20}, CHECKPOINT)],
        "GET /v1/jobs/job_1/events": [page(FIRST_STEP, LAST_STEP)],
        "GET /v1/jobs/job_1/rollouts": [page(ROLLOUT)],
        "GET /v1/rollouts/ro_1/trajectory": [TRAJECTORY],
        "POST /v1/checkpoints/ckpt_1/generate": [Answer(OPERATION, 202)],
    }


def summary_of(*evaluations: Mapping[str, Any], job: Mapping[str, Any] | None = None) -> Summary:
    """What the demo makes of a job with these evaluations."""
    snapshot = Snapshot(
        Job.model_validate(job or job_json()), Progress(state="succeeded"), (0.1, 0.5)
    )
    with scripted_api(routes(evaluations, job)) as api, Client(api.address, "vrl_t") as client:
        return summarize(client, snapshot, Start(BEGAN, 4.5))


def risen() -> Summary:
    """A job that learned."""
    return summary_of(evaluation(0, 0.05), evaluation(45, 0.85))


def test_the_summary_has_scores_rise_and_times() -> None:
    summary = risen()
    assert (summary.score_before, summary.score_after, summary.rise) == (0.05, 0.85, 0.8)
    assert (summary.job_s, summary.evaluation_s, summary.train_s) == (100.0, 10.0, 90.0)
    assert (summary.time_to_ready_s, summary.time_to_first_step_s) == (4.5, 20.0)
    assert (summary.checkpoint_id, summary.checkpoint_sha, summary.seed) == ("ckpt_1", "ab", 3)
    assert json.loads(json.dumps(summary.as_json()))["reward_curve"] == [0.1, 0.5]


def test_evaluations_of_a_former_attempt_do_not_count() -> None:
    old = evaluation(0, 0.9, attempt_id="att_0")
    assert summary_of(old, evaluation(45, 0.85)).rise is None


def test_one_evaluation_alone_is_never_both_before_and_after() -> None:
    assert summary_of(evaluation(0, 0.3)).rise is None
    assert summary_of(evaluation(45, 0.3)).rise is None


def test_an_unscorable_evaluation_gives_no_rise() -> None:
    assert summary_of(evaluation(0, None), evaluation(45, 0.5)).rise is None


@pytest.mark.parametrize(
    ("change", "min_rise", "is_shown"),
    [
        ({}, 0.05, True),
        ({"rise": 0.04}, 0.05, False),
        ({"rise": None}, 0.05, False),
        ({"state": "failed"}, 0.05, False),
        ({"state": "cancelled"}, 0.05, False),
        ({"control": "shuffled_rewards"}, 0.05, False),
        ({"control": "shuffled_rewards", "rise": 0.01}, 0.05, True),
        ({"control": "shuffled_rewards", "rise": -0.2}, 0.05, True),
    ],
)
def test_only_a_job_that_succeeded_and_rose_is_shown_and_a_control_must_not_rise(
    change: Mapping[str, Any], min_rise: float, is_shown: bool
) -> None:
    assert (verdict(replace(risen(), **change), min_rise) is None) is is_shown


def test_the_look_asks_the_checkpoint_a_held_out_question() -> None:
    summary = risen()
    with scripted_api(routes([])) as api, Client(api.address, "vrl_t") as client:
        seen = look(client, summary)
        asked = {one.path.partition("?")[0]: one for one in api.asked}
        (listed,) = [one.path for one in api.asked if "/rollouts?" in one.path]
    assert seen is not None
    assert (seen.prompt, seen.answer, seen.reward) == ("12+07", "c12+07;", 1.0)
    assert json.loads(asked["/v1/checkpoints/ckpt_1/generate"].body)["prompt"] == "12+07"
    assert "purpose=evaluation" in listed
    assert "evaluated%2845%29" in listed


def test_the_report_names_job_checkpoint_answer_and_times() -> None:
    summary = risen()
    with scripted_api(routes([])) as api, Client(api.address, "vrl_t") as client:
        text = "\n".join(report(summary, look(client, summary), "http://api"))
    for part in (
        "0.050 -> 0.850",
        "http://api/v1/jobs/job_1",
        "ckpt_1  weights ab",
        "90.0 s to the last step, 10.0 s evaluation; ready after 4.5 s, first step after 20.0 s",
        "user[12+07] assistant[c12+07;] tool[19] assistant[19]",
        "┤",
    ):
        assert part in text


def test_a_failed_job_says_why_and_what_happened_last() -> None:
    failure = {"code": "diverged", "component": "trainer", "hint": "lower the learning rate"}
    job = job_json("failed", failure=failure)
    with scripted_api(routes([], job)) as api, Client(api.address, "vrl_t") as client:
        lines = failure_lines(client, Job.model_validate(job))
    assert lines[1] == "failure diverged of trainer: lower the learning rate"
    assert all("step.committed" in line for line in lines[2:])


def test_options_change_seed_and_control_and_nothing_else(tmp_path: Path) -> None:
    document = demo._document(Options(tmp_path, seed=7, control="shuffled_rewards"))
    plain = read_spec(SPEC)
    assert document["seed"] == 7
    assert document["algorithm"] == {**plain["algorithm"], "control": "shuffled_rewards"}
    assert {**document, "seed": 0, "algorithm": 0} == {**plain, "seed": 0, "algorithm": 0}


@pytest.mark.parametrize("path", sorted(SPEC.parent.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_a_spec_without_unknown_fields(path: Path) -> None:
    spec = JobSpec.model_validate(read_spec(path))
    assert spec.evaluation is not None
    assert spec.evaluation.split == "test"


def test_the_demo_environment_is_in_the_tree() -> None:
    assert (ENVIRONMENT / "venus.toml").is_file()


def test_a_home_that_is_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with (
        holding_lock(Layout(tmp_path).make()),
        Platform(tmp_path, is_kept=False) as platform,
        pytest.raises(PlatformFailed, match=r"already running in .*; stop it with `kill"),
    ):
        platform.wait()
