"""Jobs that start from imported models and take their tasks from datasets, on a running platform."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.jobs.test_jobs import ENDS_WITHIN_S, submitted, succeeded
from tests.support import requires
from tests.support.stack import Stack
from venusrl.models.jobs import Job
from workers.models.folder import builtin_path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]


def base(ref: str) -> dict[str, Any]:
    """The model part of a spec."""
    return {"base": ref}


def weights_at_start(stack: Stack, job: Job) -> str:
    """Identity of the weights that an attempt started from."""
    query = "select weights_sha from train_step where job_id = %s order by step limit 1"
    return str(stack.query(query, job.id)[0][0])


def test_a_job_starts_from_an_uploaded_model_and_the_next_from_its_checkpoint(
    stack: Stack,
) -> None:
    model = stack.client.models.upload("mine", builtin_path("tiny-calc"))
    first = submitted(stack, model=base(model.ref))
    succeeded(stack, first)
    plain = submitted(stack)
    succeeded(stack, plain)
    assert weights_at_start(stack, first) == weights_at_start(stack, plain)

    newest = max(stack.client.checkpoints.list(first.id), key=lambda one: one.step)
    second = submitted(stack, model=base(newest.id))
    succeeded(stack, second)
    assert weights_at_start(stack, second) == newest.weights_sha

    kept = stack.client.models.from_checkpoint("kept", newest.id)
    third = submitted(stack, model=base(kept.ref))
    succeeded(stack, third)
    assert weights_at_start(stack, third) == newest.weights_sha


def test_a_job_mixes_two_datasets_and_a_restart_goes_on_in_their_order(
    stack: Stack, tmp_path: Path
) -> None:
    for name, sums in (("small", range(3)), ("large", range(20, 40))):
        text = "".join(
            json.dumps({"prompt": f"{n:02d}+01", "answer": str(n + 1)}) + "\n" for n in sums
        )
        (tmp_path / f"{name}.jsonl").write_text(text)
        stack.client.datasets.push(name, {"train": tmp_path / f"{name}.jsonl"})
    use = {"ref": "calc", "datasets": [{"ref": "small"}, {"ref": "large", "weight": 3.0}]}
    whole = submitted(stack, environments=[use], stop={"max_steps": 6})
    succeeded(stack, whole)
    names = tasks_in_order(stack, whole)
    assert {name.partition("@")[0] for name in names} == {"small", "large"}

    parted = submitted(stack, environments=[use], stop={"max_steps": 6})
    stack.client.jobs.wait_for(parted.id, ["running"], ENDS_WITHIN_S)
    stack.client.jobs.pause(parted.id)
    stack.client.jobs.wait_for(parted.id, ["paused"], ENDS_WITHIN_S)
    stack.client.jobs.resume(parted.id)
    succeeded(stack, parted)
    again = tasks_in_order(stack, parted)
    shared = min(len(names), len(again))
    assert names[:shared] == again[:shared]


def tasks_in_order(stack: Stack, job: Job) -> list[str]:
    """Tasks of the training groups, by ordinal."""
    query = (
        "select task_id from rollout_group where job_id = %s and purpose = 'train' order by ordinal"
    )
    return [str(row[0]) for row in stack.query(query, job.id)]
