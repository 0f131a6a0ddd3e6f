"""Never silently stuck: of a running job every open rollout has a reason to wait (F19)."""

import json
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.integration.faults.jobs import job_spec, member, said
from tests.support import requires
from tests.support.processes import Process
from tests.support.stack import Stack, StackPlan, running_stack
from tests.support.waiting import wait_until
from venusrl.models.jobs import Job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    requires("postgres", "valkey", "bwrap"),
]

ENDS_WITHIN_S = 150.0

SAID_WITHIN_S = 4.0
"""The leader writes every second; on crowded cores a few pass. What is older must be said."""

SCRIPT = {member(index): [said("19" if index else "+", delay_s=1.5)] for index in range(4)}
"""Turns last longer than the leader takes to tell of them; one answer of each group is worse."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Engines with two slots, so that turns wait for one."""
    with tempfile.TemporaryDirectory(prefix="venus-scripts-") as scripts:
        Path(scripts, "script.json").write_text(json.dumps({"by_rollout": SCRIPT}))
        environ = {
            "VENUS_ENGINE": "scripted",
            "VENUS_ENGINE_SCRIPT": str(Path(scripts, "script.json")),
            "VENUS_ENGINE_SLOTS": "2",
        }
        with running_stack(StackPlan(environ=environ)) as one:
            yield one


def open_rollouts(stack: Stack, job: Job) -> dict[str, datetime]:
    """Rollouts without an end, with the time of their row."""
    query = "select id, created_at from rollout where job_id = %s and closed_at is null"
    return {str(row[0]): row[1] for row in stack.query(query, job.id)}


def test_every_open_rollout_of_a_running_job_says_what_it_waits_for(stack: Stack) -> None:
    job = stack.client.jobs.create(job_spec("slow"))
    reasons: Counter[str] = Counter()
    listed: Counter[str] = Counter()

    def look() -> bool:
        now = datetime.now(UTC)
        for rollout, created_at in open_rollouts(stack, job).items():
            one = stack.client.jobs.schedule_of(job.id, rollout)
            if one.job_state != "running":
                continue
            is_new = (now - created_at).total_seconds() < SAID_WITHIN_S
            assert is_new or one.wait_reason not in (None, "not_reported"), one
            reasons[str(one.wait_reason)] += 1
        schedule = stack.client.jobs.schedule(job.id)
        listed.update(group.lane for group in schedule.groups)
        return stack.client.jobs.get(job.id).state == "succeeded"

    wait_until(look, ENDS_WITHIN_S)
    assert reasons["running"], reasons
    assert reasons["waits_for_slot"], reasons
    assert listed["critical"], listed
    ended = stack.client.jobs.schedule(job.id)
    assert (ended.state, ended.groups, sum(ended.lanes.values())) == ("succeeded", [], 0)
    profile = stack.client.jobs.profile(job.id)
    assert sum(profile.staleness.values()) == 2
    assert profile.active_batch is not None
    assert (profile.active_batch.running_rollouts, profile.active_batch.engine_slots) == (0, 0)
    assert profile.sandboxes is not None
    assert profile.sandboxes.held == 0
    assert profile.written_at is not None
    (engine,) = profile.engines
    assert engine.slots == 2
    assert engine.sampled_tokens


@pytest.mark.slow
def test_a_rollout_whose_sandbox_never_comes_says_so(stack: Stack) -> None:
    """A frozen node is replaced when its lease is over, so whichever node lives is frozen again."""
    job = stack.client.jobs.create(job_spec("no node"))
    frozen: dict[int, Process] = {}

    def freeze() -> None:
        for node in stack.hosts("node"):
            if node.pid not in frozen:
                node.send(signal.SIGSTOP)
                frozen[node.pid] = node

    def named() -> bool:
        freeze()
        groups = stack.client.jobs.schedule(job.id).groups
        said_of = {one.wait_reason for group in groups for one in group.rollouts}
        return bool(said_of & {"sandbox_starts", "waits_for_node"})

    try:
        wait_until(lambda: stack.client.jobs.get(job.id).state == "running", ENDS_WITHIN_S)
        wait_until(named, ENDS_WITHIN_S)
    finally:
        for node in frozen.values():
            node.send(signal.SIGCONT)
        stack.client.jobs.cancel(job.id)
        stack.client.jobs.wait_for(job.id, ["cancelled", "failed", "succeeded"], ENDS_WITHIN_S)
