"""Two node hosts of unequal memory on a real stack: groups go where their own accounts have room."""

from collections import Counter
from collections.abc import Iterator

import pytest

from sandboxes.core.names import MIB
from tests.support import requires
from tests.support.specs import small_job
from tests.support.stack import Stack, StackPlan, running_stack
from tests.support.waiting import wait_until
from tests.support.whole_job import assert_whole

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    requires("postgres", "valkey", "bwrap"),
]

ENDS_WITHIN_S = 240.0

SMALL, LARGE = 1_300 * MIB, 2_500 * MIB
"""By the prior a sandbox may need its 512 MiB, and a grader's 576 MiB and a tenth are kept: room for
one and for three."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two nodes, none of which takes a group of four whole."""
    environ = {"VENUS_POOL_NODES": "2", "VENUS_NODE_MEMORY_BYTES": f"{SMALL},{LARGE}"}
    with running_stack(StackPlan(environ=environ)) as one:
        yield one


def held_on(stack: Stack, job_id: str) -> dict[str, Counter[str]]:
    """Of each group: how many agents' sandboxes each node held."""
    query = (
        "select r.group_id, i.host_id from sandbox_interval i join rollout r on r.id = i.rollout_id"
        " where r.job_id = %s and i.purpose = 'agent'"
    )
    found: dict[str, Counter[str]] = {}
    for group, host in stack.query(query, job_id):
        found.setdefault(str(group), Counter())[str(host)] += 1
    return found


def test_a_group_that_no_node_takes_is_split_by_their_rooms(stack: Stack) -> None:
    job = stack.client.jobs.create(small_job(stop={"max_steps": 1}))
    wait_until(lambda: stack.client.jobs.get(job.id).state == "succeeded", ENDS_WITHIN_S)
    rows = assert_whole(stack, job.id)
    assert [row for row in rows.tries if row["end"] is not None and row["end"] != "done"] == []
    held = held_on(stack, job.id)
    first = held[min(held)]
    assert first == {"host_node0": 1, "host_node1": 3}, held
    # Later groups meet an account that has learned what these sandboxes really need.
    assert all(one.total() == 4 for one in held.values()), held


def test_a_group_that_one_node_takes_stays_whole(stack: Stack) -> None:
    rollout = {**small_job()["rollout"], "group_size": 2}
    job = stack.client.jobs.create(small_job(rollout=rollout, stop={"max_steps": 1}))
    wait_until(lambda: stack.client.jobs.get(job.id).state == "succeeded", ENDS_WITHIN_S)
    assert_whole(stack, job.id)
    held = held_on(stack, job.id)
    assert held, "no group was made"
    assert all(len(one) == 1 and one.total() == 2 for one in held.values()), held
