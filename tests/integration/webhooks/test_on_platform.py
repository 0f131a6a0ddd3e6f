"""A real job on a running platform: its events arrive, its usage is its bill, its calls are on record."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.integration.webhooks.hooks import LOCAL, is_signed
from tests.support.requirements import requires
from tests.support.specs import small_job
from tests.support.stack import Stack, StackPlan, running_stack
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import receiving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), requires("postgres", "valkey", "bwrap")]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A platform that lets webhooks call this machine."""
    with running_stack(StackPlan(environ={"VENUS_WEBHOOK_HOSTS": LOCAL})) as stack:
        yield stack


def test_every_event_of_a_job_arrives_though_the_broker_forgets(stack: Stack) -> None:
    with receiving() as receiver:
        hook = stack.client.webhooks.create(receiver.url)
        job = stack.client.jobs.create(small_job("diary", stop={"max_steps": 1}))
        wait_until(lambda: len(receiver.got) > 0, 60.0)
        stack.flush_broker()
        stack.client.jobs.wait(job.id, 240.0)
        events = {event.id: event.type for event in stack.client.jobs.events(job.id)}
        wait_until(lambda: len(set(receiver.ids)) >= len(events), 60.0)
        said = [json.loads(one.body) for one in receiver.got]
        assert {one["data"]["seq"]: one["type"] for one in said} == events
        assert all(is_signed(one, hook.secret) for one in receiver.got)
        states = [one["data"]["body"].get("state") for one in said if one["type"] == "job.state"]
        assert "succeeded" in states
        wait_until(lambda: stack.client.jobs.bill(job.id).is_final, 60.0)
        wall = stack.client.jobs.bill(job.id).wall_s
        since = datetime.now(UTC) - timedelta(hours=12)
        lines = stack.client.usage.list(group_by="job", bucket="hour", since=since)
        own = [line for line in lines if line.job_id == job.id]
        for resource, seconds in wall.items():
            found = sum(line.seconds for line in own if line.resource == resource)
            assert found == pytest.approx(seconds, abs=0.01)
        (made,) = stack.admin.audit.list(target=job.id)
        assert (made.action, made.outcome) == ("jobs.create", "done")
