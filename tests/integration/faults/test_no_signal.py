"""F12: no group has a signal. The job says so with the tasks' ids, and does what its spec says."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.integration.faults.jobs import Platform, job_spec, member, said
from tests.support.requirements import requires
from tests.support.waiting import wait_until
from venusrl.client import JobPaused
from venusrl.models.jobs import Job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]

POLICIES: Final = ("pause", "wait", "skip")

WITHIN_S: Final = 120.0
"""A batch of two groups takes seconds; the machine may run much else."""


def flat(policy: str) -> dict[str, object]:
    """A job in which all members of every group answer alike."""
    return job_spec(
        f"flat-{policy}",
        environments=[{"ref": "chaos", "shuffle": False}],
        algorithm={"on_no_signal": policy},
        rollout={"group_size": 2, "groups_per_batch": 2},
    )


@pytest.fixture(scope="module")
def jobs(platform: Platform) -> Iterator[dict[str, Job]]:
    """One job a policy, all at once."""
    alike = {member(index): [said("a+;")] for index in range(2)}
    with (
        platform.running(flat("pause"), alike) as first,
        platform.running(flat("wait"), alike) as second,
        platform.running(flat("skip"), alike) as third,
    ):
        yield dict(zip(POLICIES, (first, second, third), strict=True))


def notes(platform: Platform, job: Job) -> list[dict[str, str]]:
    """What the job said about its signal."""
    return [one.body for one in platform.client.jobs.events(job.id, types=["job.no_signal"])]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_job_says_which_tasks_had_no_signal(
    platform: Platform, jobs: dict[str, Job], policy: str
) -> None:
    job = jobs[policy]
    wait_until(lambda: notes(platform, job), WITHIN_S, "the job says nothing")
    first = notes(platform, job)[0]
    assert first["action"] == policy
    named = {group.id: group.task_id for group in platform.groups(job)}
    groups = first["groups"].split()
    assert first["tasks"].split() == list(dict.fromkeys(named[group] for group in groups))
    assert len(groups) >= 2


def test_pause_stands_still_until_a_person_acts(platform: Platform, jobs: dict[str, Job]) -> None:
    with pytest.raises(JobPaused, match="no_signal"):
        platform.client.jobs.wait(jobs["pause"].id, WITHIN_S)


def test_wait_probes_with_one_group_at_a_time(platform: Platform, jobs: dict[str, Job]) -> None:
    job = jobs["wait"]
    wait_until(lambda: notes(platform, job), WITHIN_S, "the job says nothing")
    opened = len(platform.groups(job))
    assert platform.client.jobs.get(job.id).state == "running"
    blocked = lambda: platform.client.jobs.progress(job.id)["blocked"] == "no_signal"  # noqa: E731
    wait_until(blocked, WITHIN_S, "its progress does not say why it waits")
    assert len(platform.groups(job)) <= opened + 1
    assert len(notes(platform, job)) == 1


def test_skip_goes_on_with_other_tasks_and_says_so_again(
    platform: Platform, jobs: dict[str, Job]
) -> None:
    job = jobs["skip"]
    wait_until(lambda: len(notes(platform, job)) >= 2, WITHIN_S, "the job does not go on")
    assert platform.client.jobs.get(job.id).state == "running"


def test_nothing_without_a_signal_is_trained(platform: Platform, jobs: dict[str, Job]) -> None:
    for job in jobs.values():
        assert not list(platform.client.jobs.metrics(job.id, names=["loss"]))
        for group in platform.groups(job):
            assert group.disposition in ("dropped(zero_variance)", "pending"), group
