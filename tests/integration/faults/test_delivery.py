"""F13, F14, F16, F20, F21, F25, F26: one job to which everything is done that delivers work twice.

Its creation loses its answer, an engine's weights fail to come, its trainer dies in the middle of a
checkpoint, its host tasks are delivered again, it is paused, its newest checkpoint rots, it goes on.
Afterwards every step was made once, from the groups that the rows say.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from api.idempotency import FAILPOINT_AFTER_COMMIT
from infra.broker import make_app
from infra.names import HOST_TASK
from tests.integration.faults.jobs import (
    END_WITHIN_S,
    ENDED,
    Platform,
    assert_no_trained_failure,
    assert_one_point_per_step,
    checkpoint_folder,
    job_spec,
)
from tests.support.requirements import requires
from tests.support.waiting import wait_until
from tests.support.whole_job import assert_whole
from venusrl.models.jobs import Job
from workers.keeper import FAILPOINT_BEFORE_CLAIM
from workers.rollout.seams import SYNC_CHUNK

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]

STEPS: Final = 10
FILE_WRITTEN: Final = "checkpoint.file_written"
NAME: Final = "delivered twice"

SECOND_CHUNK_OF_A_SYNC: Final = 5
"""Weights of the model are three chunks; the first three are those of step 0."""

THIRD_FILE_OF_A_SAVE: Final = 9
"""A checkpoint has six files and a manifest; the first six files are those of step 1."""

MISMATCH_MAX: Final = 1e-3
"""Between the log-probabilities of engine and trainer for tokens of the weights being trained."""

TWINS: Final = 20


@dataclass(frozen=True, slots=True)
class Told:
    """What was seen on the way."""

    platform: Platform
    job: Job
    leases_before: list[tuple[Any, ...]]
    leases_after: list[tuple[Any, ...]]
    paused_at: int


@pytest.fixture(scope="module")
def told(platform: Platform) -> Iterator[Told]:
    """The story, whole; the tests look at what it left."""
    stack, client = platform.stack, platform.client
    stack.failpoints.arm(
        f"{FAILPOINT_AFTER_COMMIT}@api=kill",
        f"{SYNC_CHUNK}@engine=raise:os,count={SECOND_CHUNK_OF_A_SYNC}",
        f"{FILE_WRITTEN}@trainer=kill,count={THIRD_FILE_OF_A_SAVE}",
        f"{FAILPOINT_BEFORE_CLAIM}@keeper=drop,times=*",
    )
    rollout = {
        "group_size": 8,
        "groups_per_batch": 1,
        "sampling": {"temperature": 0.6, "max_tokens_per_turn": 16},
    }
    spec = job_spec(NAME, rollout=rollout, stop={"max_steps": STEPS})
    try:
        with platform.running(spec) as job:
            skipped = lambda: [*client.jobs.events(job.id, types=["checkpoint.skipped"])]  # noqa: E731
            wait_until(skipped, END_WITHIN_S, "no checkpoint was left half-written")
            before, after = deliver_again(platform, job)
            client.jobs.pause(job.id)
            paused = platform.settled(job)
            assert paused.state == "paused", paused
            paused_at = rot_newest_checkpoint(platform, job)
            client.jobs.resume(job.id)
            client.jobs.wait_for(job.id, ("resuming", "running"), END_WITHIN_S)
            platform.succeeded(job)
            yield Told(platform, job, before, after, paused_at)
    finally:
        stack.failpoints.disarm()


def deliver_again(
    platform: Platform, job: Job
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Send the wake-up of every claimed host twice more, and an old one; the rows around that."""
    stack = platform.stack
    broker = make_app(stack.state["environ"]["BROKER_URL"])

    def leases() -> list[tuple[Any, ...]]:
        return stack.query(
            "select id, epoch, owner, starts from host_lease where desired = 'up'"
            " and (attempt_id = %s or attempt_id is null) order by id",
            job.attempt_id,
        )

    def taken() -> int:
        return len(stack.failpoints.fired(FAILPOINT_BEFORE_CLAIM))

    wait_until(lambda: all(row[2] for row in leases()), END_WITHIN_S, "a host is not claimed")
    before, taken_before = leases(), taken()
    sent = [(row[0], epoch) for row in before for epoch in (row[1], row[1], row[1] - 1)]
    for host, epoch in sent:
        broker.send_task(HOST_TASK, args=[host, epoch])
    wait_until(lambda: taken() >= taken_before + len(sent), END_WITHIN_S, "tasks are not taken")
    return before, leases()


def rot_newest_checkpoint(platform: Platform, job: Job) -> int:
    """Flip one byte of the newest whole checkpoint's weights; returns its step."""
    newest = next(
        one
        for one in platform.client.checkpoints.list(job.id, newest_first=True)
        if one.state == "ready"
    )
    path = checkpoint_folder(platform, newest.id) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    return newest.step


def test_a_creation_whose_answer_was_lost_made_one_job(told: Told) -> None:
    """F21: the client's retry, under the same key, met the job that was there."""
    assert len(told.platform.stack.failpoints.fired(FAILPOINT_AFTER_COMMIT)) == 1
    assert [job.id for job in told.platform.client.jobs.list() if job.name == NAME] == [told.job.id]


def test_twenty_parallel_creations_under_one_key_make_one_job(platform: Platform) -> None:
    """F21."""
    headers = {"Idempotency-Key": "twins", **platform.authorization()}
    spec = job_spec("twins")

    def post(_: int) -> tuple[int, str]:
        answer = httpx.post(
            f"{platform.client.base_url}/v1/jobs", json=spec, headers=headers, timeout=60.0
        )
        return answer.status_code, answer.json()["id"]

    with ThreadPoolExecutor(TWINS) as pool:
        answers = set(pool.map(post, range(TWINS)))
    jobs = [job for job in platform.client.jobs.list() if job.name == "twins"]
    for job in jobs:
        platform.end(job)
    assert answers == {(201, jobs[0].id)}
    assert len(jobs) == 1


def test_a_task_that_is_delivered_again_starts_nothing(told: Told) -> None:
    """F20: the row has the owner; a second and an old message find it and end."""
    assert told.leases_before
    assert told.leases_after == told.leases_before


def test_every_step_is_made_once_and_its_weights_re_derive(told: Told) -> None:
    """F20, F25: no step is lost or doubled by a death, a repetition, a pause."""
    committed = told.platform.client.jobs.events(told.job.id, types=["step.committed"])
    assert [event.body["step"] for event in committed] == list(range(1, STEPS + 1))
    assert_whole(told.platform.stack, told.job.id)
    assert_no_trained_failure(told.platform, told.job)


def test_each_series_has_one_point_at_each_step(told: Told) -> None:
    """F26: also where a trainer made steps anew after its death."""
    assert_one_point_per_step(told.platform, told.job)
    points = told.platform.client.jobs.metrics(told.job.id, names=["reward_mean"])
    assert [point.step for point in points] == list(range(1, STEPS + 1))


def test_a_half_written_and_a_rotten_checkpoint_are_passed_over_and_said_so(told: Told) -> None:
    """F25."""
    client = told.platform.client
    skipped = [*client.jobs.events(told.job.id, types=["checkpoint.skipped"])]
    assert len(told.platform.stack.failpoints.fired(FILE_WRITTEN)) == 1
    assert [event.body["step"] for event in skipped] == [2, told.paused_at]
    assert "not found" in skipped[0].body["cause"]
    assert "recorded sha256" in skipped[1].body["cause"]
    assert not [event for event in skipped if str(told.platform.stack.home) in str(event.body)]
    listed = [*client.checkpoints.list(told.job.id)]
    assert {one.state for one in listed} <= {"ready", "expired"}
    assert max(one.step for one in listed if one.state == "ready") == STEPS


def test_a_ready_checkpoint_downloads_whole(told: Told, tmp_path: Path) -> None:
    newest = next(told.platform.client.checkpoints.list(told.job.id, newest_first=True))
    folder = told.platform.client.checkpoints.download(newest.id, tmp_path / "model")
    assert {file.name for file in newest.files} == {path.name for path in folder.iterdir()}


def test_a_sync_that_failed_is_made_good_and_labels_stay_true(told: Told) -> None:
    """F13, F14, F16: at temperature 0.6, fresh tokens have the log-probability that the trainer gives
    them under the weights of their label: no engine served others than it said."""
    assert len(told.platform.stack.failpoints.fired(SYNC_CHUNK)) == 1
    points = told.platform.client.jobs.metrics(told.job.id, names=["mismatch_max"])
    assert len(points) == STEPS
    assert max(point.value for point in points) < MISMATCH_MAX
    newest = [one.newest_version for one in told.platform.client.rollouts.list(told.job.id)]
    assert max(version for version in newest if version is not None) > 1


def test_no_step_is_made_between_a_pause_and_its_resume(told: Told) -> None:
    shown = [
        event.body.get("state") or event.type
        for event in told.platform.client.jobs.events(
            told.job.id, types=["job.state", "step.committed"]
        )
    ]
    assert shown[shown.index("paused") + 1] == "resuming"


def test_the_job_has_ended_once(told: Told) -> None:
    states = [
        event.body["state"]
        for event in told.platform.client.jobs.events(told.job.id, types=["job.state"])
    ]
    assert states[-1] == "succeeded"
    assert len([state for state in states if state in ENDED]) == 1
