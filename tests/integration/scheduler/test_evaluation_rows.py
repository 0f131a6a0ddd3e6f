"""What a new leader and the trainer read of evaluations that are not finished."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.ids import EVALUATION_ORDINAL_BASE, AttemptId
from stores import tables as t
from stores.system import checkpoints, jobs
from tests.integration.api.world import Tenant, installation
from tests.support import requires

pytestmark = [pytest.mark.integration, requires("postgres")]


@pytest.fixture
def tenant(database_url: str, tmp_path: Path) -> Iterator[Tenant]:
    """A project on a fresh database."""
    with installation(database_url, tmp_path / "home") as world:
        yield world.tenant()


def group(tenant: Tenant, job: dict[str, str], step: int, purpose: str = "evaluation") -> int:
    """A closed group of this step; its ordinal."""
    ordinal = EVALUATION_ORDINAL_BASE + 10_000 * step if purpose == "evaluation" else step
    tenant.world.add(
        t.rollout_group, id=f"grp_{ordinal}", job_id=job["id"], attempt_id=job["attempt_id"],
        organization_id=tenant.organization_id, ordinal=ordinal, purpose=purpose, task_id="t",
        environment_version_id="ev", policy_version=step, size=1, open=0,
    )  # fmt: skip
    return ordinal


def finished(tenant: Tenant, job: dict[str, str], step: int, selected: float | None) -> None:
    """A finished evaluation."""
    tenant.world.add(
        t.evaluation, attempt_id=job["attempt_id"], step=step, tasks=1, scored=1, unscorable=0,
        seconds=1.0, score=0.1, selected=selected,
    )  # fmt: skip


def test_a_new_leader_hears_of_every_ordinal_that_was_issued(tenant: Tenant) -> None:
    job = tenant.job()
    issued = {group(tenant, job, 3, "train"), group(tenant, job, 0), group(tenant, job, 2)}
    attempt = AttemptId(job["attempt_id"])
    assert tenant.world.run(lambda c: jobs.issued_ordinals(c, attempt)) == issued


def test_weights_stay_from_the_step_of_an_unfinished_evaluation_on(tenant: Tenant) -> None:
    job = tenant.job()
    attempt = AttemptId(job["attempt_id"])
    for step in range(5):
        tenant.world.add(
            t.train_step, job_id=job["id"], attempt_id=attempt, step=step, epoch=1, group_ids=[],
            payloads=[], learning_rate=0.1, weights_sha=f"w{step}", weights_uri=f"w{step}",
            probe_uri=f"p{step}",
        )  # fmt: skip

    def deletable() -> list[str]:
        found = tenant.world.run(lambda c: checkpoints.published_before(c, attempt, 4))
        return sorted(weights for weights, _ in found)

    assert deletable() == ["w0", "w1", "w2", "w3"]
    group(tenant, job, 1)
    group(tenant, job, 2)
    finished(tenant, job, 1, 0.5)
    assert deletable() == ["w0", "w1"], "step 2 is evaluated, step 3 may wait behind it"
    finished(tenant, job, 2, 0.5)
    assert deletable() == ["w0", "w1", "w2", "w3"]


def test_the_step_that_reached_a_target_is_read_anew(tenant: Tenant) -> None:
    job = tenant.job()
    attempt = AttemptId(job["attempt_id"])
    for step, selected in ((0, None), (2, 0.4), (4, 0.7), (6, 0.9)):
        finished(tenant, job, step, selected)

    def reached(target: float | None) -> int | None:
        return tenant.world.run(lambda c: jobs.reached_step(c, attempt, target))

    assert [reached(target) for target in (None, 0.4, 0.5, 0.95)] == [None, 2, 4, None]
