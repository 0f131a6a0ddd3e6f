"""F22, F24, F25: whatever fails a job says why, through poll, stream and client; no request of a user
ends an engine.

Each stage fails in a way of its own: the package, its task list, the start, the rollouts
(`test_chaos.py`), a step (`test_records.py`), and, slowly, a host that dies in each of them for ever.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.integration.faults.jobs import (
    Platform,
    chaos_job,
    checkpoint_folder,
    job_spec,
    member,
    said,
)
from tests.support.requirements import requires
from venusrl.client import EnvironmentInvalid, Invalid, JobFailed, OperationFailed
from venusrl.models.checkpoints import Checkpoint
from venusrl.models.jobs import Job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]

MANIFEST: Final = """
name = "{name}"
version = "1"
sdk = 1
entry = "env:Broken"
harness = "chat"
resumable = true
sandbox = false
"""

ENVIRONMENT: Final = """
import os, signal
from venusrl.env import Environment, Message, Rollout, Task, Value, reward

class Broken(Environment):
    @classmethod
    def load(cls, split, config):
        for step in config.get("at_load", []):
            {{"raise": _raise, "kill": _kill, "exit": _exit}}[step]()
        count = 0 if config.get("is_empty") and split == "train" else 4
        return [Task(f"{{split}}-{{i}}", (Message("user", f"1{{i}}+12"),), "x") for i in range(count)]

    @reward(weight=1.0)
    async def correct(self, rollout: Rollout) -> Value:
        return 0.0

def _raise():
    raise RuntimeError("the data set is gone")

def _kill():
    os.kill(os.getpid(), signal.SIGKILL)

def _exit():
    os._exit(7)

{last}
"""

CASE: Final = (
    '{"name": "zero", "split": "train", "task": "train-0", "turns": [{"content": "1"}],'
    ' "expect": {"end": "done", "total": 0.0}}\n'
)


def package(folder: Path, name: str, last: str = "") -> Path:
    """An environment without a sandbox; `last` are the last lines of its module."""
    target = folder / name
    (target / "cases").mkdir(parents=True)
    (target / "venus.toml").write_text(MANIFEST.format(name=name))
    (target / "env.py").write_text(ENVIRONMENT.format(last=last))
    (target / "cases" / "verdicts.jsonl").write_text(CASE)
    return target


def assert_told(platform: Platform, job: Job, code: str, said_: str) -> JobFailed:
    """Poll, stream, list of events and client say the same cause; returns the client's error."""
    found = platform.settled(job)
    assert found.state == "failed", found
    assert found.failure is not None
    assert found.failure.code == code
    with pytest.raises(JobFailed) as caught:
        platform.client.jobs.wait(job.id)
    assert caught.value.code == code
    assert said_ in (caught.value.hint or "")
    with pytest.raises(JobFailed, match=code):
        deque(platform.client.jobs.follow(job.id), maxlen=0)
    last = [*platform.client.jobs.events(job.id, types=["job.state"])][-1]
    assert (last.body["state"], last.body["failure_code"]) == ("failed", code)
    return caught.value


@pytest.mark.parametrize(
    ("name", "last", "finding"),
    [
        ("unimportable", "import no_such_module", "no_such_module"),
        ("dying", "os._exit(3)", "process_exited"),
        ("shot", "_kill()", "process_killed"),
    ],
)
def test_a_package_that_does_not_import_is_a_typed_error_with_its_cause(
    platform: Platform, tmp_path: Path, name: str, last: str, finding: str
) -> None:
    with pytest.raises(EnvironmentInvalid) as caught:
        platform.client.environments.push(package(tmp_path, name, last))
    assert finding in " ".join(f"{one.code} {one.message}" for one in caught.value.errors)
    with pytest.raises(Invalid) as refused:
        platform.client.jobs.create(job_spec(name, environments=[{"ref": name}]))
    assert [one.code for one in refused.value.errors] == ["version_not_ready"]


@pytest.fixture(scope="module")
def loading(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Reference of an environment whose task list fails as its configuration says."""
    folder = package(tmp_path_factory.mktemp("packages"), "loading")
    return platform.client.environments.push(folder).ref


@pytest.mark.parametrize(
    ("config", "code", "hint"),
    [
        ({"at_load": ["raise"]}, "tasks_unloadable", "the data set is gone"),
        ({"at_load": ["kill"]}, "tasks_unloadable", "process_killed"),
        ({"at_load": ["exit"]}, "tasks_unloadable", "process_exited"),
        ({"is_empty": True}, "no_tasks", "train"),
    ],
)
def test_a_task_list_that_cannot_be_loaded_fails_the_job_with_its_cause(
    platform: Platform, loading: str, config: dict[str, object], code: str, hint: str
) -> None:
    environment = {"ref": loading, "config": config}
    with platform.running(job_spec("loading", environments=[environment])) as job:
        assert_told(platform, job, code, hint)


@dataclass(frozen=True, slots=True)
class Trained:
    """A job of two steps that succeeded, and the checkpoint of each."""

    job: Job
    first: Checkpoint
    last: Checkpoint


@pytest.fixture(scope="module")
def trained(platform: Platform) -> Iterator[Trained]:
    """What can be looked at and started from."""
    rollout = {"group_size": 2, "groups_per_batch": 1}
    spec = chaos_job("trained", {}, rollout=rollout, stop={"max_steps": 2})
    with platform.running(spec, {member(0): [said("a99;")], member(1): [said("a+;")]}) as job:
        platform.succeeded(job)
        first, last = platform.client.checkpoints.list(job.id)
        yield Trained(job, first, last)


@pytest.mark.parametrize(
    ("prompt", "max_tokens"),
    [("", 8), (" ", 8), ("\n\t", 8), ("\u3000", 8), ("12+07", 0), ("12+07", -1), ("1" * 4001, 8)],
)
def test_a_prompt_that_no_engine_may_see_is_refused_at_the_gateway(
    platform: Platform, trained: Trained, prompt: str, max_tokens: int
) -> None:
    with pytest.raises(Invalid) as caught:
        platform.client.checkpoints.generate(trained.last.id, prompt, max_tokens=max_tokens)
    assert caught.value.status == 422
    assert {one.pointer for one in caught.value.errors} <= {"/prompt", "/max_tokens"}


@pytest.mark.parametrize("field", ["token_ids", "ids", "messages/0"])
def test_ids_are_not_taken_where_only_text_is(
    platform: Platform, trained: Trained, field: str
) -> None:
    """Only BOS, empty ids, an id beyond the vocabulary: there is no way in for any of them."""
    answer = httpx.post(
        f"{platform.client.base_url}/v1/checkpoints/{trained.last.id}/generate",
        json={"prompt": "12+07", field.partition("/")[0]: [10**9]},
        headers=platform.authorization(),
        timeout=60.0,
    )
    assert answer.status_code == 422
    assert [one["pointer"] for one in answer.json()["errors"]] == [f"/{field}"]


def test_a_prompt_of_unknown_characters_or_too_long_harms_nobody(
    platform: Platform, trained: Trained
) -> None:
    with pytest.raises(OperationFailed) as caught:
        platform.client.checkpoints.generate(trained.last.id, "1" * 400, max_tokens=8)
    assert caught.value.code == "context_overflow"
    strange = platform.client.checkpoints.generate(
        trained.last.id, "\u00e4\U0001f600", max_tokens=4
    )
    assert strange.sampled_tokens <= 4
    plain = platform.client.checkpoints.generate(trained.last.id, "12+07", max_tokens=8)
    assert plain.sampled_tokens >= 1


def test_a_start_whose_checkpoint_is_gone_fails_with_its_cause(
    platform: Platform, trained: Trained
) -> None:
    """F25, F22: nothing of the attempt is left from which it could begin otherwise."""
    (checkpoint_folder(platform, trained.first.id) / "model.safetensors").unlink()
    again = platform.client.jobs.restart(trained.job.id, trained.first.id)
    assert (again.attempt, trained.first.step) == (2, 1)
    assert_told(platform, again, "checkpoint_unreadable", "model.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "failpoint",
    [
        "weights.written@trainer=kill,times=*",
        "backward.middle@trainer=kill,times=*",
        "checkpoint.file_written@trainer=raise:os,times=*",
        "rollout.attached@engine=kill,times=*",
    ],
)
def test_a_host_that_dies_at_one_place_for_ever_fails_its_job(
    platform: Platform, failpoint: str
) -> None:
    """F20, F22: a bounded number of starts at the start, in a step, at a save, in a rollout."""
    spec = job_spec("dying", rollout={"group_size": 2, "groups_per_batch": 2})
    platform.stack.failpoints.arm(failpoint)
    try:
        with platform.running(spec) as job:
            error = assert_told(platform, job, "host_lost", "lost")
            assert error.retryable
            ((starts,),) = platform.stack.query(
                "select max(starts) from host_lease where attempt_id = %s", job.attempt_id
            )
            assert 1 < starts <= 12
    finally:
        platform.stack.failpoints.disarm()
