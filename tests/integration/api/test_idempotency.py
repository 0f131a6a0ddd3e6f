"""F21: an accepted POST whose answer was lost is never done twice."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncConnection

from api.idempotency import FAILPOINT_AFTER_COMMIT
from stores import tables as t
from supervisor.services import choose_port
from tests.integration.api.world import SPEC, Tenant, World
from tests.support.failpoints import ArmedFailpoints
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


def test_twenty_parallel_retries_make_one_job(world: World, tenant: Tenant) -> None:
    tenant.environment()

    def post(_: int) -> httpx.Response:
        with tenant.http(**{"Idempotency-Key": "one"}) as http:
            return http.post("/v1/jobs", json=SPEC)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, range(20)))
    assert {one.status_code for one in answers} == {201}
    first = answers[0].json()
    assert all(one.json() == first for one in answers)
    assert sum("Idempotent-Replayed" in one.headers for one in answers) == 19
    assert len(world.rows(t.job)) == len(world.rows(t.attempt)) == len(world.rows(t.job_event)) == 1
    assert len(world.rows(t.operation)) == 1


def test_the_same_key_with_another_body_is_a_conflict(world: World, tenant: Tenant) -> None:
    tenant.environment()
    with tenant.http(**{"Idempotency-Key": "one"}) as http:
        assert http.post("/v1/jobs", json=SPEC).status_code == 201
        other = http.post("/v1/jobs", json={**SPEC, "name": "another"})
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert len(world.rows(t.job)) == 1


def test_two_tenants_may_choose_the_same_key(world: World, tenant: Tenant) -> None:
    other = world.tenant("other")
    made = set()
    for one in (tenant, other):
        one.environment()
        with one.http(**{"Idempotency-Key": "one"}) as http:
            made.add(http.post("/v1/jobs", json=SPEC).json()["id"])
    assert len(made) == 2


def test_a_refused_request_leaves_its_key_free(tenant: Tenant) -> None:
    with tenant.http(**{"Idempotency-Key": "one"}) as http:
        assert http.post("/v1/jobs", json=SPEC).status_code == 422
        tenant.environment()
        assert http.post("/v1/jobs", json=SPEC).status_code == 201


def test_a_key_older_than_a_day_is_forgotten(world: World, tenant: Tenant) -> None:
    tenant.environment()

    async def age(connection: AsyncConnection) -> None:
        values = {"created_at": func.now() - timedelta(hours=25)}
        await connection.execute(update(t.idempotency).values(values))

    with tenant.http(**{"Idempotency-Key": "one"}) as http:
        first = http.post("/v1/jobs", json=SPEC).json()["id"]
        http.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "other"})
        world.run(age)
        assert http.post("/v1/jobs", json=SPEC).json()["id"] != first
    assert "other" not in {row.key for row in world.rows(t.idempotency)}


def test_requests_without_a_key_are_separate(tenant: Tenant) -> None:
    tenant.environment()
    with tenant.http() as http:
        ids = {http.post("/v1/jobs", json=SPEC).json()["id"] for _ in range(2)}
    assert len(ids) == 2


def test_a_verb_repeated_under_one_key_raises_the_generation_once(tenant: Tenant) -> None:
    job = tenant.job()
    with tenant.http(**{"Idempotency-Key": "pause-once"}) as http:
        answers = [http.post(f"/v1/jobs/{job['id']}/pause") for _ in range(3)]
    assert {one.json()["generation"] for one in answers} == {2}


def test_an_unusable_key_is_refused_by_name(tenant: Tenant) -> None:
    tenant.environment()
    with tenant.http() as http:
        for key in ("", "x" * 201, "with space", "tab\tbed"):
            answer = http.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": key})
            assert answer.status_code == 422, key
            assert "dempotency" in answer.json()["errors"][0]["pointer"]


@contextmanager
def gateway_process(world: World, environ: dict[str, str]) -> Iterator[tuple[str, int]]:
    """`python -m api.main` on the same installation; its address and pid."""
    port = choose_port("127.0.0.1", 0)
    settings = world.settings
    process = subprocess.Popen(
        [sys.executable, "-m", "api.main"],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": settings.database_url,
            "VENUS_HOME": str(settings.home),
            "VENUS_API_PORT": str(port),
            **environ,
        },
    )

    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5.0).is_success
        except httpx.TransportError:
            assert process.poll() is None, "the gateway ended"
            return False

    try:
        wait_until(answers, 60.0)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.kill()
        process.wait()


def test_a_gateway_killed_between_commit_and_reply_leaves_the_answer_for_the_retry(
    world: World, tenant: Tenant, armed: ArmedFailpoints
) -> None:
    tenant.environment()
    armed.arm(f"{FAILPOINT_AFTER_COMMIT}@api=kill")
    headers = {"Authorization": f"Bearer {tenant.key}", "Idempotency-Key": "lost"}
    with gateway_process(world, armed.environ) as (address, _), pytest.raises(httpx.TransportError):
        httpx.post(f"{address}/v1/jobs", json=SPEC, headers=headers, timeout=30.0)
    assert len(armed.fired(FAILPOINT_AFTER_COMMIT)) == 1
    (job,) = world.rows(t.job)
    with tenant.http(**{"Idempotency-Key": "lost"}) as http:
        retried = http.post("/v1/jobs", json=SPEC)
    assert retried.status_code == 201
    assert retried.json()["id"] == job.id
    assert len(world.rows(t.job)) == 1
