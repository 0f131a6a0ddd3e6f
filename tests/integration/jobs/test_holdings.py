"""What a job's environment printed, where a rollout's time went, an export, and the end of it all."""

import tarfile
from pathlib import Path

import pytest

from tests.integration.environments.helpers import write_package
from tests.support import requires
from tests.support.specs import small_job
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from venusrl.client import NotFound
from venusrl.models.jobs import Job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    requires("postgres", "valkey", "bwrap"),
]

PRINTING = """
class Env(Environment):
    replies = 0
    async def setup(self, task, sandbox):
        print("set up")
    async def reply(self, turn):
        Env.replies += 1
        print("reply", Env.replies)
        if Env.replies == 1:
            raise RuntimeError("the first reply fails")
        return None
    @reward(weight=1.0)
    async def luck(self, rollout: Rollout) -> Value:
        print("grading", rollout.id)
        return float(sum(map(ord, rollout.messages[-1].content)) % 2)
"""


@pytest.fixture(scope="module")
def ended(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("printing")
    write_package(folder, PRINTING)
    stack.client.environments.push(folder)
    spec = small_job(
        "test", evaluation=None, stop={"max_steps": 2}, algorithm={"on_no_signal": "skip"},
        checkpoints={"every_steps": 1, "ttl_days": 30}, scheduling={"max_staleness": 0},
    )  # fmt: skip
    job = stack.client.jobs.create(spec)
    return stack.client.jobs.wait(job.id, 200.0)


def test_a_failed_try_and_its_successor_left_their_lines(stack: Stack, ended: Job) -> None:
    lines = list(stack.client.jobs.logs(ended.id, component="environment"))
    (failed,) = [line for line in lines if line.text == "reply 1"]
    assert (failed.try_number, failed.attempt_id) == (1, ended.attempt_id)
    assert failed.rollout_id is not None
    rollout = failed.rollout_id
    # A try's lines are stored after its end, by a queue of the node agent.
    wait_until(
        lambda: {line.try_number for line in stack.client.rollouts.logs(rollout)} >= {1, 2},
        30.0,
        f"{stack.client.rollouts.get(rollout)}",
    )
    graded = stack.client.jobs.logs(ended.id, component="grader")
    assert all(line.text == f"grading {line.rollout_id}" for line in graded)


def test_spans_of_a_trained_rollout_add_up(stack: Stack, ended: Job) -> None:
    rollout = next(stack.client.rollouts.list(ended.id, disposition="trained"))
    spans = stack.client.rollouts.spans(rollout.id).spans
    names = [span.name for span in spans]
    for name in ("wait_for_sandbox", "sandbox", "placement", "generate", "wait_for_batch"):
        assert name in names
    assert all(span.seconds is not None and span.seconds >= 0.0 for span in spans)


def test_an_export_holds_the_model(stack: Stack, ended: Job, tmp_path: Path) -> None:
    newest = next(stack.client.checkpoints.list(ended.id, newest_first=True))
    assert newest.ttl_days == 30
    assert newest.expires_at is not None
    file = stack.client.checkpoints.fetch_export(newest.id, tmp_path)
    with tarfile.open(file) as archive:
        assert f"{newest.id}/model.safetensors" in archive.getnames()


def test_a_deleted_job_leaves_only_what_is_kept(stack: Stack, ended: Job) -> None:
    kept, *_ = stack.client.checkpoints.list(ended.id, newest_first=True)
    stack.client.checkpoints.update(kept.id, keep=True)
    stack.client.jobs.delete(ended.id)
    with pytest.raises(NotFound):
        stack.client.jobs.get(ended.id)
    objects = Path(stack.object_store_url.removeprefix("file://"))

    def is_clean() -> bool:
        left = [path for path in (objects / "jobs" / ended.id).rglob("*") if path.is_file()]
        outputs = objects / "outputs" / ended.attempt_id
        printed = [path for path in outputs.rglob("*") if path.is_file()]
        return not printed and all(kept.id in str(path) for path in left)

    wait_until(is_clean, 90.0, "objects of a deleted job were left")
    assert [one.id for one in stack.client.checkpoints.list(keep=True)] == [kept.id]
