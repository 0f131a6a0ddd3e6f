"""Two surfaces of one implementation: the same nouns and verbs, the same answers and retries."""

import asyncio
import hashlib
import inspect
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.venusrl.client.playing import Script, answers, job, page, problem
from venusrl import AsyncClient, Client
from venusrl._surface import items, run_now
from venusrl.client import ConnectionFailed, JobFailed, NotFound

LOST = httpx.ReadError("the answer was lost")


class Never:
    """Something to wait for."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def verbs(noun: object) -> set[str]:
    """Public methods of a noun."""
    return {
        name for name in dir(noun) if not name.startswith("_") and callable(getattr(noun, name))
    }


def nouns(client: object) -> set[str]:
    """Public attributes of a client."""
    return {name for name in dir(client) if not name.startswith("_")}


def test_both_clients_list_the_same_nouns_and_verbs() -> None:
    blocking, awaited = Client("http://api", "k"), AsyncClient("http://api", "k")
    assert nouns(blocking) == nouns(awaited)
    for noun in nouns(blocking):
        assert verbs(getattr(blocking, noun)) == verbs(getattr(awaited, noun)), noun


def test_a_verb_takes_the_same_arguments_on_both() -> None:
    blocking, awaited = Client("http://api", "k"), AsyncClient("http://api", "k")
    for noun in nouns(blocking) - {"base_url", "status", "close"}:
        for verb in verbs(getattr(blocking, noun)):
            one, other = (getattr(getattr(it, noun), verb) for it in (blocking, awaited))
            assert inspect.signature(one) == inspect.signature(other), (noun, verb)
            assert one.__doc__ == other.__doc__, (noun, verb)


async def test_an_awaited_post_keeps_its_idempotency_key_over_all_tries() -> None:
    created = httpx.Response(201, json=job())
    script = Script([LOST, problem(503, "unavailable"), created])
    async with script.async_client() as client:
        assert (await client.jobs.create({"name": "j"})).id == "job_1"
    assert len({request.headers["Idempotency-Key"] for request in script.requests}) == 1
    assert script.slept == [0.25, 0.5]


async def test_an_awaited_list_fetches_page_after_page() -> None:
    script = Script([page([job(id="job_1")], "job_1"), page([job(id="job_2")])])
    async with script.async_client() as client:
        assert [one.id async for one in client.jobs.list()] == ["job_1", "job_2"]


async def test_awaited_refusals_are_typed() -> None:
    async with Script([problem(404, "not_found")]).async_client() as client:
        with pytest.raises(NotFound):
            await client.jobs.get("job_1")
    async with Script([LOST]).async_client(tries=2) as client:
        with pytest.raises(ConnectionFailed):
            await client.jobs.get("job_1")


async def test_awaiting_a_job_polls_on_its_clock() -> None:
    script = Script(answers(job(), job(), job(state="failed")))
    async with script.async_client() as client:
        with pytest.raises(JobFailed):
            await client.jobs.wait("job_1", timeout_s=60.0)
    assert len(script.requests) == 3


async def test_events_are_followed_over_a_broken_connection() -> None:
    def event(id: int) -> str:
        body = {"id": id, "type": "t", "body": {}, "created_at": "2026-01-01T00:00:00Z"}
        return f"id: {id}\nevent: t\ndata: {json.dumps(body)}\n\n"

    first = httpx.Response(200, content=event(1).encode())
    rest = httpx.Response(200, content=(event(1) + event(2) + "event: end\ndata: {}\n\n").encode())
    script = Script([first, rest, *answers(job(state="succeeded"))])
    async with script.async_client() as client:
        assert [one.id async for one in client.jobs.follow("job_1")] == [1, 2]
    assert script.requests[1].headers["Last-Event-ID"] == "1"


async def test_an_awaited_download_is_checked(tmp_path: Path) -> None:
    content = b"0123456789"
    file = {"name": "model.bin", "size": 10, "sha256": hashlib.sha256(content).hexdigest()}
    checkpoint: dict[str, Any] = {
        "id": "ckpt_1", "job_id": "job_1", "attempt_id": "att_1", "step": 1, "state": "ready",
        "reason": "end", "weights_sha": "w", "files": [file], "created_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    script = Script([*answers(checkpoint), httpx.Response(200, content=content)])
    async with script.async_client() as client:
        await client.checkpoints.download("ckpt_1", tmp_path)
    assert (tmp_path / "model.bin").read_bytes() == content


async def test_many_awaited_requests_run_at_once() -> None:
    script = Script([httpx.Response(200, json=job())])
    async with script.async_client() as client:
        found = await asyncio.gather(*(client.jobs.get(f"job_{n}") for n in range(20)))
    assert len(found) == 20


async def test_the_blocking_client_works_inside_a_running_loop() -> None:
    script = Script([page([job(id="job_1")], "job_1"), page([job(id="job_2")])])
    with script.client() as client:
        first = next(iter(client.jobs.list()))
    assert first.id == "job_1"


def test_a_blocking_call_that_would_suspend_is_a_defect() -> None:
    async def suspends() -> None:
        await Never()

    with pytest.raises(AssertionError, match="suspended"):
        run_now(suspends())


def test_an_iterator_that_is_left_early_is_closed() -> None:
    closed = []

    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    left = items(numbers())
    assert next(left) == 1
    left.close()  # type: ignore[attr-defined]  # a generator
    assert closed == [True]
