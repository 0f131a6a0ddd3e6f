"""Small jobs on the running platform, and what the public API says of them."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from domain.ids import AttemptId, group_id, rollout_id
from tests.support.stack import TREE, Stack
from venusrl.client import Client
from venusrl.models.jobs import Job
from venusrl.models.rollouts import Group, RolloutDetail
from workers.models.vocab import Vocabulary, read_vocab

CHAOS: Final = TREE / "environments" / "chaos"

MANIFEST: Final = "manifest.json"
"""File of a checkpoint that its row names; written last."""

END_WITHIN_S: Final = 300.0
"""A job of this folder takes seconds; on a machine that runs much else, several times that."""

ENDED: Final = frozenset({"succeeded", "failed", "cancelled"})

Answers = Sequence[Mapping[str, Any]]
"""Answers of one rollout to the calls of its turns, as the scripted engine reads them."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A running stack and the folder of scripts that its engine hosts look into."""

    stack: Stack
    scripts: Path

    @property
    def client(self) -> Client:
        """The developer's client."""
        return self.stack.client

    def authorization(self) -> dict[str, str]:
        """Header of a new key of the developer's project, for requests that no client makes."""
        ((project,),) = self.stack.query("select id from project")
        key = self.stack.admin.keys.create("by hand", str(project))
        return {"Authorization": f"Bearer {key.secret}"}

    def start(self, spec: Mapping[str, Any], script: Mapping[str, Answers] | None = None) -> Job:
        """Submit a job. With a script (answers by end of the rollout's id) no model runs."""
        job = self.client.jobs.create(dict(spec))
        if script is not None:
            waiting = self.scripts / f"{job.attempt_id}.new"
            waiting.write_text(json.dumps({"by_rollout": script}))
            waiting.rename(self.scripts / f"{job.attempt_id}.json")
        return job

    def settled(self, job: Job) -> Job:
        """The job once it has ended, or stands still until a person acts; within a deadline."""
        wanted = ("succeeded", "failed", "cancelled", "paused")
        found = self.client.jobs.wait_for(job.id, wanted, END_WITHIN_S)
        assert found.state in wanted, f"{found}\n{self.client.jobs.progress(job.id)}"
        return found

    def succeeded(self, job: Job) -> Job:
        """The job, which must have reached its planned steps by itself."""
        found = self.settled(job)
        assert found.state == "succeeded", f"{found.state}: {found.queue_reason}, {found.failure}"
        return found

    @contextmanager
    def running(
        self, spec: Mapping[str, Any], script: Mapping[str, Answers] | None = None
    ) -> Iterator[Job]:
        """A job for the length of a block; whatever became of it, it has ended afterwards."""
        job = self.start(spec, script)
        try:
            yield job
        finally:
            self.end(job)

    def end(self, job: Job) -> None:
        """Cancel the job unless it has ended."""
        if self.client.jobs.get(job.id).state not in ENDED:
            self.client.jobs.cancel(job.id)
            self.client.jobs.wait_for(job.id, tuple(ENDED), END_WITHIN_S)

    def rollouts(self, job: Job, **filters: Any) -> list[RolloutDetail]:
        """Rollouts of a job, each with its former tries."""
        listed = self.client.rollouts.list(job.id, **filters)
        return [self.client.rollouts.get(one.id) for one in listed]

    def groups(self, job: Job, **filters: Any) -> list[Group]:
        """Groups of a job."""
        return list(self.client.groups.list(job.id, **filters))


def job_spec(name: str, **changes: Any) -> dict[str, Any]:
    """One step of two groups of four on the smallest model; `changes` replace top-level fields.

    Those of `rollout` replace its fields one by one.
    """
    rollout = {
        "group_size": 4,
        "groups_per_batch": 2,
        "sampling": {"temperature": 1.0, "max_tokens_per_turn": 16},
        "pause_job_if_failed_share": 1.0,
        **changes.pop("rollout", {}),
    }
    spec: dict[str, Any] = {
        "name": name,
        "model": {"base": "tiny-calc"},
        "environments": [{"ref": "calc"}],
        "rollout": rollout,
        "algorithm": {"on_no_signal": "skip"},
        "optimizer": {"lr": 3e-4},
        "evaluation": None,
        "checkpoints": {"every_steps": 1},
        "resources": {"rollout_gpus": {"min": 1, "max": 1}},
        "stop": {"max_steps": 1},
    }
    return {**spec, **changes}


def chaos_job(name: str, config: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The same on the chaos environment, tasks in their order."""
    chaos = {"ref": "chaos", "config": dict(config), "shuffle": False}
    return job_spec(name, environments=[chaos], **changes)


def vocabulary() -> Vocabulary:
    """That of the model that all jobs of this folder start from."""
    return read_vocab(TREE / "workers" / "models" / "builtin" / "tiny-calc" / "vocab.json")


def said(text: str, **more: Any) -> dict[str, Any]:
    """One scripted answer with the ids of a text."""
    return {"token_ids": list(vocabulary().encode(text)), **more}


def member(index: int, ordinal: int | None = None) -> str:
    """End of the ids of all rollouts at this place in their group, or of the one in that group."""
    if ordinal is None:
        return f"_{index:03d}"
    group = group_id(AttemptId("att_x"), ordinal)
    return rollout_id(group, index).removeprefix("ro_x")


def checkpoint_folder(platform: Platform, checkpoint_id: str) -> Path:
    """Where the files of a checkpoint lie."""
    rows = platform.stack.query("select manifest_uri from checkpoint where id = %s", checkpoint_id)
    root = Path(platform.stack.object_store_url.removeprefix("file://"))
    return root / str(rows[0][0]).removesuffix(f"/{MANIFEST}")


def assert_no_trained_failure(platform: Platform, job: Job) -> None:
    """Whatever has no score was not trained, has no advantage and counts in no step; no zero for it."""
    for one in platform.client.rollouts.list(job.id):
        if one.verdict != "scored":
            assert one.reward is None, one
            assert one.advantage is None, one
            assert not one.disposition.startswith("trained"), one
        elif one.disposition.startswith("trained"):
            assert None not in (one.reward, one.advantage), one
    trained = [one for one in platform.client.rollouts.list(job.id) if "trained" in one.disposition]
    steps = Counter(one.disposition for one in trained)
    counted = {
        f"trained({point.step})": point.value
        for point in platform.client.jobs.metrics(job.id, names=["rollouts"])
    }
    assert {step: float(n) for step, n in steps.items()} == counted


def assert_one_point_per_step(platform: Platform, job: Job) -> None:
    """F26: every series of a job has at most one point at each step of an attempt."""
    points = platform.client.jobs.metrics(job.id)
    counts = Counter((point.attempt_id, point.step, point.name) for point in points)
    assert counts
    assert set(counts.values()) == {1}
