"""Live events: monotonic ids, replay after a lost connection, filters, heartbeat, an end."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from api.jobs import stream
from stores import events, jobs
from stores import tables as t
from tests.integration.api.world import Tenant, World, listening
from tests.support.waiting import wait_until
from venusrl._events import ServerSentEvent, parse_events
from venusrl.client import JobCancelled, JobFailed
from venusrl.models.jobs import Event


def append(world: World, job_id: str, *types: str) -> None:
    """Write events as the leader would, each in its own transaction."""
    for type_ in types:

        async def act(connection: AsyncConnection, type_: str = type_) -> None:
            await events.append(connection, job_id, type_, {"step": 1})

        world.run(act)


def read(http: httpx.Client, job_id: str, **headers: str) -> list[ServerSentEvent]:
    """The whole stream of an ended job."""
    wanted = {"Accept": "text/event-stream", **headers}
    with http.stream("GET", f"/v1/jobs/{job_id}/events", headers=wanted) as response:
        assert response.status_code == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        return list(parse_events(response.iter_lines()))


def test_a_stream_replays_everything_and_ends_with_the_job(world: World, tenant: Tenant) -> None:
    job = tenant.ended()
    append(world, job["id"], "step.committed", "job.state")
    with tenant.http() as http:
        *replayed, last = read(http, job["id"])
    assert [(one.id, one.event) for one in replayed] == [
        ("1", "job.created"),
        ("2", "step.committed"),
        ("3", "job.state"),
    ]
    assert (last.event, last.id) == ("end", "")
    assert Event.model_validate(replayed[1].json()).body == {"step": 1}


def test_a_reconnect_goes_on_after_the_last_event_seen(world: World, tenant: Tenant) -> None:
    job = tenant.ended()
    append(world, job["id"], *["step.committed"] * 5)
    with tenant.http() as http:
        seen = read(http, job["id"], **{"Last-Event-ID": "4"})
        strange = read(http, job["id"], **{"Last-Event-ID": "no number"})
        beyond = read(http, job["id"], **{"Last-Event-ID": "99999"})
    assert [one.id for one in seen] == ["5", "6", ""]
    assert len(strange) == 7
    assert [one.event for one in beyond] == ["end"]


def test_types_filter_the_stream_and_the_pages(world: World, tenant: Tenant) -> None:
    job = tenant.ended()
    append(world, job["id"], "step.committed", "checkpoint.ready", "step.committed")
    path = f"/v1/jobs/{job['id']}/events"
    with tenant.http() as http:
        types = "checkpoint.ready,job.created"
        with http.stream(
            "GET", path, params={"types": types}, headers={"Accept": "text/event-stream"}
        ) as response:
            streamed = [one.id for one in parse_events(response.iter_lines())]
        paged = http.get(path, params={"types": types}).json()["data"]
    assert streamed == ["1", "3", ""]
    assert [one["id"] for one in paged] == [1, 3]


def test_the_same_rows_are_pages_of_json(world: World, tenant: Tenant) -> None:
    job = tenant.job()
    append(world, job["id"], *["step.committed"] * 4)
    with tenant.http() as http:
        path = f"/v1/jobs/{job['id']}/events"
        first = http.get(path, params={"limit": 3}).json()
        second = http.get(path, params={"limit": 3, "after": first["next"]}).json()
    assert [one["id"] for one in first["data"] + second["data"]] == [1, 2, 3, 4, 5]
    assert (first["has_more"], second["has_more"], second["next"]) == (True, False, None)


def test_an_event_reaches_a_listener_while_the_job_runs(world: World, tenant: Tenant) -> None:
    job = tenant.job()
    seen: list[Event] = []

    def follow() -> None:
        with tenant.sdk() as client:
            seen.extend(client.jobs.follow(job["id"]))

    listener = threading.Thread(target=follow)
    listener.start()
    append(world, job["id"], "step.committed")
    world.change(t.job, job["id"], state="succeeded")
    listener.join(20.0)
    assert not listener.is_alive()
    assert [one.type for one in seen] == ["job.created", "step.committed"]


def test_silence_is_filled_with_heartbeats(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(stream, "POLL_S", 0.01)
    job = tenant.job()

    def beats(lines: Iterator[str]) -> Iterator[str]:
        return (line for line in lines if line.startswith(":"))

    with (
        tenant.http() as http,
        http.stream(
            "GET", f"/v1/jobs/{job['id']}/events", headers={"Accept": "text/event-stream"}
        ) as response,
    ):
        found = beats(response.iter_lines())
        assert [next(found), next(found)] == [": alive", ": alive"]


def test_a_listener_that_left_costs_the_gateway_nothing(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    original = jobs.events_after

    async def counted(*arguments: Any, **named: Any) -> Any:
        looks.append("look")
        return await original(*arguments, **named)

    monkeypatch.setattr(jobs, "events_after", counted)
    monkeypatch.setattr(stream, "POLL_S", 0.01)
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.02)
    job = tenant.job()
    with (
        tenant.http() as http,
        http.stream(
            "GET", f"/v1/jobs/{job['id']}/events", headers={"Accept": "text/event-stream"}
        ) as response,
    ):
        next(response.iter_lines())
    counts = [len(looks), -1]

    def is_quiet() -> bool:
        counts.append(len(looks))
        return len(set(counts[-20:])) == 1

    wait_until(is_quiet, 20.0, "the stream goes on")


def test_following_survives_a_restart_of_the_gateway(world: World, tenant: Tenant) -> None:
    job = tenant.job()
    seen: list[int] = []
    with listening(world.settings) as address:
        port = int(address.rpartition(":")[2])
        followed = tenant.sdk_at(address)

        def follow() -> None:
            seen.extend(event.id for event in followed.jobs.follow(job["id"]))

        listener = threading.Thread(target=follow)
        listener.start()
        append(world, job["id"], "step.committed")
    append(world, job["id"], "step.committed", "step.committed")
    with listening(world.settings, port):
        append(world, job["id"], "job.state")
        world.change(t.job, job["id"], state="succeeded")
        listener.join(30.0)
    followed.close()
    assert seen == [1, 2, 3, 4, 5]


def test_the_client_raises_the_cause_of_a_failed_job(tenant: Tenant) -> None:
    failed, cancelled = tenant.ended("failed"), tenant.ended("cancelled")
    seen: list[Event] = []
    with tenant.sdk() as client:
        with pytest.raises(JobFailed) as caught:
            client.jobs.wait(failed["id"])
        with pytest.raises(JobFailed):
            seen.extend(client.jobs.follow(failed["id"]))
        with pytest.raises(JobCancelled):
            client.jobs.wait(cancelled["id"])
    assert [one.type for one in seen] == ["job.created"]
    assert caught.value.code == "trainer_failed"
    assert "trainer" in str(caught.value)
