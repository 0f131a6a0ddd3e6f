"""At least once: senders that die, leaders that look, and a backlog that no process holds whole."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import psycopg
import pytest
from celery import Celery
from sqlalchemy import func, insert

from infra.names import DELIVER_TASK
from infra.signatures import event_id
from scheduler import watch
from scheduler.watch import ChoreWatch
from stores import tables as t
from stores.unit_of_work import AsyncConnection, Database
from tests.integration.api.world import World
from tests.integration.webhooks.hooks import LOCAL, Project, is_signed, run
from tests.support.failpoints import ArmedFailpoints
from tests.support.webhook_receiver import Receiver
from workers.webhooks.delivering import SENT

TREE = Path(__file__).resolve().parents[3]

BACKLOG = 4_000
GROWTH_MAX_KIB = 16 * 1024
"""All bodies of the backlog together are 40 MiB, and far more as objects."""


def deliver(
    world: World,
    command: tuple[str, ...] = ("-m", "workers.webhooks.main"),
    within_s: float = 60.0,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """A delivering process of its own, as a worker starts it."""
    settings = world.settings
    return subprocess.run(
        [sys.executable, *command],
        cwd=TREE,
        env={
            **os.environ,
            "DATABASE_URL": settings.database_url,
            "VENUS_HOME": str(settings.home),
            "VENUS_WEBHOOK_HOSTS": LOCAL,
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )


def test_a_sender_killed_between_send_and_mark_sends_again_with_the_same_id(
    project: Project, receiver: Receiver, armed: ArmedFailpoints
) -> None:
    hook = project.hook(receiver.url)
    project.say("job.state")
    armed.arm(f"{SENT}@deliver=kill")
    assert deliver(project.world, environ=armed.environ).returncode == -9
    assert len(receiver.got) == 1
    assert [one.state for one in project.deliveries(hook)] == ["pending"]
    assert deliver(project.world).returncode == 0
    assert len(receiver.got) == 1, "the claim of the dead sender has not ended"
    project.later()
    assert deliver(project.world).returncode == 0
    assert len(set(receiver.ids)) == 1
    assert [is_signed(one, hook.secret) for one in receiver.got] == [True, True]
    (delivery,) = project.deliveries(hook)
    assert (delivery.state, delivery.tries) == ("delivered", 2)


def test_a_delivery_that_kills_every_sender_ends(
    project: Project, receiver: Receiver, armed: ArmedFailpoints
) -> None:
    hook = project.hook(receiver.url)
    project.say("job.state")
    armed.arm(f"{SENT}@deliver=kill,times=2")
    environ = {"VENUS_WEBHOOK_TRIES": "2", **armed.environ}
    for _ in range(2):
        assert deliver(project.world, environ=environ).returncode == -9
        project.later()
    run(project.world.settings, tries=2)
    (delivery,) = project.deliveries(hook)
    assert (delivery.state, delivery.attempts[-1].code) == ("failed", "sender_died")
    assert len(receiver.got) == 2


def test_several_senders_at_once_send_each_event_once(project: Project, receiver: Receiver) -> None:
    project.hook(receiver.url)
    project.say(*["step.committed"] * 60)
    command = [sys.executable, "-m", "workers.webhooks.main"]
    environ = {
        **os.environ,
        "DATABASE_URL": project.world.settings.database_url,
        "VENUS_HOME": str(project.world.settings.home),
        "VENUS_WEBHOOK_HOSTS": LOCAL,
    }
    senders = [subprocess.Popen(command, cwd=TREE, env=environ) for _ in range(2)]
    assert [one.wait(120.0) for one in senders] == [0, 0]
    assert len(receiver.ids) == len(set(receiver.ids)) == 60


class Wakes:
    """The broker's side: what it was asked to wake."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send_task(self, name: str, args: list[Any], **options: Any) -> None:
        """Keep the task's name."""
        assert options["expires"] is not None
        self.sent.append(name)


async def _looks(world: World, times: int) -> list[str]:
    wakes, database = Wakes(), Database(world.settings.database_url, 2)
    try:
        watching = ChoreWatch(database, cast("Celery", wakes), 1)
        for _ in range(times):
            await watching.look()
    finally:
        await database.close()
    return [name for name in wakes.sent if name == DELIVER_TASK]


def _looked(world: World, times: int) -> int:
    return len(asyncio.run(_looks(world, times)))


def test_the_leader_wakes_a_worker_while_something_is_due_and_nobody_sends(
    project: Project, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = project.world

    async def lead(connection: AsyncConnection) -> None:
        row = {"id": 1, "term": 1, "address": "here", "key": b"k", "backend_pid": 1}
        await connection.execute(insert(t.leadership).values(**row, heartbeat_at=func.now()))

    world.run(lead)
    # Operations are another matter: their wake-ups never expire.
    with psycopg.connect(world.settings.database_url, autocommit=True) as connection:
        connection.execute("update operation set state = 'done', ended_at = now()")
    hook = project.hook(receiver.url)
    assert _looked(world, 2) == 0
    project.say("job.state")
    assert _looked(world, 3) == 1
    monkeypatch.setattr(watch, "DELIVER_AGAIN_S", 0.0)
    assert _looked(world, 3) == 3
    with psycopg.connect(world.settings.database_url, autocommit=True) as connection:
        connection.execute("update webhook_delivery set claimed_until = now() + interval '1 hour'")
    assert _looked(world, 2) == 0
    project.later()
    run(world.settings)
    assert _looked(world, 2) == 0
    assert [one.state for one in project.deliveries(hook)] == ["delivered"]


EVENTS = """
insert into job_event (job_id, seq, type, body)
select %(job)s, %(first)s + n, 'step.committed',
    jsonb_build_object('step', n, 'filler', repeat('x', 10000))
from generate_series(1, %(count)s) n
"""

DELIVERIES = """
insert into webhook_delivery (id, webhook_id, event_id, type, job_id, seq)
select 'dlv_' || lpad(n::text, 26, '0'), %(hook)s,
    %(prefix)s || lpad((%(first)s + n)::text, 9, '0'), 'step.committed', %(job)s, %(first)s + n
from generate_series(1, %(count)s) n
"""


def _pile_up(project: Project, hook_id: str) -> None:
    """A backlog as `stores.events.append` would have left it, in two statements."""
    job = project.job["id"]
    with psycopg.connect(project.world.settings.database_url, autocommit=True) as connection:
        first = connection.execute("select event_seq from job where id = %s", [job]).fetchone()
        assert first is not None
        prefix = event_id(job, 0).removesuffix("0" * 9)
        values = {"job": job, "hook": hook_id, "first": first[0], "prefix": prefix}
        for statement in (EVENTS, DELIVERIES):
            connection.execute(statement.encode(), {**values, "count": BACKLOG})
        connection.execute("analyze webhook_delivery")


MEASURED = """
import asyncio, dataclasses, resource, sys
from infra.settings import Settings
from workers.webhooks import delivering, main
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
settings = Settings.from_env()
runs = delivering.Delivering.run
delivering.Delivering.run = lambda self: runs(self, run_s=2.0)
assert asyncio.run(main.run(settings)) == 0
first = peak()
delivering.Delivering.run = lambda self: runs(self, run_s=500.0)
assert asyncio.run(main.run(settings)) == 0
print("grown", peak() - first)
"""
"""A process that says by how much a long run needed more memory than a short one, in KiB."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_backlog_of_forty_megabytes_is_delivered_in_bounded_memory(
    project: Project, receiver: Receiver
) -> None:
    receiver.keeps_bodies = False
    hook = project.hook(receiver.url)
    _pile_up(project, hook.id)
    done = deliver(project.world, command=("-c", MEASURED), within_s=560.0)
    assert done.returncode == 0, done.stderr[-3000:]
    (grown,) = [line for line in done.stdout.splitlines() if line.startswith("grown")]
    assert int(grown.split()[1]) < GROWTH_MAX_KIB
    assert len(receiver.ids) == len(set(receiver.ids)) == BACKLOG
