"""The bill of a job whose engine, trainer and node agent are killed: every second once, all linked.

The wall time that it must sum to is taken from other places: the lease's creation, the end of the
attempt, and this test's own clock when nothing was held any more.
"""

import signal
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import pytest

from domain.billing import Bucket, Resource
from tests.support import processes, requires
from tests.support.specs import small_job
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from tests.support.whole_job import assert_released
from venusrl.models.bills import Bill
from venusrl.models.jobs import Job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    requires("postgres", "valkey", "bwrap"),
]

ENDS_WITHIN_S: Final = 200.0
SHARE: Final = 0.01
"""How far buckets may be from the wall time."""


@pytest.fixture(scope="module")
def killed(stack: Stack) -> Job:
    """A job that has ended although each of its hosts and a node agent were killed once."""
    one_engine = {"rollout_gpus": {"min": 1, "max": 1}}
    job = stack.client.jobs.create(
        small_job("diary", resources=one_engine, evaluation={"tasks": 4}, stop={"max_steps": 5})
    )
    for step, kind in ((1, "engine"), (2, "trainer"), (3, "node")):
        _after_step(stack, job, step)
        for one in processes.hosts(stack.processes(), kind):
            one.send(signal.SIGKILL)
        _assert_sums(stack, stack.client.jobs.bill(job.id))
    stack.client.jobs.wait(job.id, ENDS_WITHIN_S)
    assert_released(stack)
    return job


def _after_step(stack: Stack, job: Job, step: int) -> None:
    query = "select 1 from train_step where job_id = %s and step = %s"
    wait_until(lambda: stack.query(query, job.id, step), ENDS_WITHIN_S, f"step {step} never came")


@pytest.fixture(scope="module")
def released_at(killed: Job) -> datetime:
    """After the job held nothing any more."""
    return datetime.now(UTC)


def final_bill(stack: Stack, job: Job) -> Bill:
    """The bill once it stands in the ledger."""
    wait_until(lambda: stack.client.jobs.bill(job.id).is_final, 30.0, "the bill is never settled")
    return stack.client.jobs.bill(job.id)


def _assert_sums(stack: Stack, bill: Bill) -> None:
    sums = dict.fromkeys(Resource, 0.0)
    for line in bill.lines:
        assert line.seconds >= 0.0
        sums[Resource(line.resource)] += line.seconds
    for resource, seconds in sums.items():
        assert seconds == pytest.approx(bill.wall_s[resource.value])
    assert {(one.resource, one.bucket) for one in bill.lines} == {
        (resource.value, bucket.value) for resource in Resource for bucket in Bucket
    }


def test_buckets_sum_to_the_wall_time_after_kills(
    stack: Stack, killed: Job, released_at: datetime
) -> None:
    bill = final_bill(stack, killed)
    _assert_sums(stack, bill)
    (attempt,) = stack.query("select ended_at from attempt where job_id = %s", killed.id)
    for kind in ("engine", "trainer"):
        query = "select created_at from host_lease where job_id = %s and kind = %s"
        ((created,),) = stack.query(query, killed.id, kind)
        least = (attempt[0] - created).total_seconds()
        most = (released_at - created).total_seconds()
        assert least * (1 - SHARE) <= bill.wall_s[kind] <= most * (1 + SHARE)


def test_intervals_of_the_jobs_hosts_tile_their_time(stack: Stack, killed: Job) -> None:
    query = (
        "select host_id, started_at, ended_at, cause from host_interval where job_id = %s"
        " order by host_id, number"
    )
    rows = stack.query(query, killed.id)
    hosts = {row[0] for row in rows}
    assert len(hosts) == 2
    for host in hosts:
        of_host = [row for row in rows if row[0] == host]
        assert all(before[2] == after[1] for before, after in pairwise(of_host))
        assert any("-9" in (row[3] or "") for row in of_host), of_host


def test_no_sandbox_is_left_open_and_what_the_dead_agent_held_ended_with_it(
    stack: Stack, killed: Job
) -> None:
    query = (
        "select s.ended_at, i.ended_at from sandbox_interval s"
        " left join host_interval i on i.host_id = s.host_id and i.epoch = s.epoch"
        " and i.owner is not null where s.attempt_id = %s"
    )
    rows = stack.query(query, killed.attempt_id)
    assert rows
    for ended, host_ended in rows:
        assert ended is not None
        assert host_ended is None or ended <= host_ended + timedelta(seconds=1)


def test_work_and_losses_are_in_their_buckets(stack: Stack, killed: Job) -> None:
    lines = _by_place(final_bill(stack, killed))
    assert lines["engine", "trained"].seconds > 0.0
    assert lines["engine", "evaluation"].seconds > 0.0
    assert lines["engine", "infrastructure"].seconds > 0.0
    assert lines["trainer", "trained"].seconds > 0.0
    assert lines["trainer", "infrastructure"].seconds > 0.0
    assert lines["trainer", "checkpointing"].seconds > 0.0
    assert lines["sandbox", "trained"].seconds > 0.0
    assert lines["engine", "pending"].seconds == 0.0


def test_each_line_links_to_its_rollouts(stack: Stack, killed: Job) -> None:
    bill = final_bill(stack, killed)
    listed: dict[str, int] = {}
    for line in bill.lines:
        assert line.rollouts_url == f"/v1/jobs/{killed.id}/rollouts?bucket={line.bucket}"
        if line.bucket not in listed:
            found = stack.client.rollouts.list(killed.id, bucket=line.bucket)
            listed[line.bucket] = len(list(found))
        assert line.rollouts in (0, listed[line.bucket])
    assert sum(listed.values()) == stack.client.jobs.ledger(killed.id).rollouts


def test_a_trained_rollout_is_followed_to_the_trainers_row(stack: Stack, killed: Job) -> None:
    found = next(stack.client.rollouts.list(killed.id, disposition="trained"))
    shown = stack.client.rollouts.get(found.id)
    assert shown.training is not None
    (step,) = stack.query(
        "select weights_sha, payloads from train_step where attempt_id = %s and step = %s",
        killed.attempt_id,
        shown.training.step,
    )
    assert shown.disposition == f"trained({shown.training.step})"
    assert shown.training.weights_sha == step[0]
    assert shown.training.payload is not None
    assert shown.training.payload.uri in {one["uri"] for one in step[1]}
    assert shown.hops
    assert shown.hops[-1].engine_s is not None


def _by_place(bill: Bill) -> dict[tuple[str, str], Any]:
    return {(line.resource, line.bucket): line for line in bill.lines}
