"""Whatever goes wrong leaves the gateway as a problem document with a request id."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.settings import Settings
from stores import tables as t
from tests.integration.api.world import SPEC, Tenant, World, listening

PROBLEM = "application/problem+json"


def check_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The document, after what every problem has."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == PROBLEM
    document: dict[str, Any] = answer.json()
    assert document["code"] == code
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    assert document["request_id"] == answer.headers["X-Request-Id"]
    return document


def test_an_unknown_address_and_a_wrong_method_are_problems(tenant: Tenant) -> None:
    with tenant.http() as http:
        check_problem(http.get("/v1/nothing"), 404, "not_found")
        check_problem(http.put("/v1/jobs"), 405, "method_not_allowed")
        document = check_problem(http.get("/v1/jobs/job_none"), 404, "not_found")
    assert document["instance"] == "/v1/jobs/job_none"


def test_a_request_id_of_the_client_comes_back(tenant: Tenant) -> None:
    with tenant.http(**{"X-Request-Id": "mine-1"}) as http:
        assert http.get("/v1/jobs").headers["X-Request-Id"] == "mine-1"
        assert check_problem(http.get("/v1/jobs/x"), 404, "not_found")["request_id"] == "mine-1"
        oversize = http.get("/v1/jobs", headers={"X-Request-Id": "x" * 101})
    assert oversize.headers["X-Request-Id"].startswith("req_")


def test_a_body_that_is_no_json_object_is_a_problem(tenant: Tenant) -> None:
    with tenant.http(**{"Content-Type": "application/json"}) as http:
        for content in (b"{", b"", b"[]", b'"text"', b"null", b"\xff\xfe"):
            answer = http.post("/v1/jobs", content=content)
            assert answer.status_code in (400, 422), content
            document = check_problem(answer, answer.status_code, answer.json()["code"])
            assert all(one["pointer"] == "" for one in document["errors"])


def test_deeply_nested_json_is_refused(tenant: Tenant) -> None:
    with tenant.http(**{"Content-Type": "application/json"}) as http:
        deep = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
        answer = http.post("/v1/jobs", content=deep)
        assert answer.status_code in (400, 422)
        check_problem(answer, answer.status_code, answer.json()["code"])


def test_a_query_parameter_out_of_range_has_a_pointer(tenant: Tenant) -> None:
    with tenant.http() as http:
        document = check_problem(http.get("/v1/jobs", params={"limit": 0}), 422, "invalid")
    assert document["errors"][0]["pointer"] == "/query/limit"


def test_a_nul_in_an_address_is_refused_before_the_database(tenant: Tenant) -> None:
    paths = ("/v1/jobs/%00", "/v1/jobs?after=%00", "/v1/jobs?state=a%00b", "/v1/groups/a%00")
    with tenant.http() as http:
        for path in paths:
            check_problem(http.get(path), 400, "bad_request")


def test_a_number_that_no_column_holds_is_refused(tenant: Tenant) -> None:
    paths = (
        f"/v1/environments/calc/versions/{2**31}",
        f"/v1/jobs/x/events?after={2**63}",
        f"/v1/jobs/x/metrics?after_step={2**31}",
        f"/v1/jobs/x/metrics?after={10**10}:1:a",
        f"/v1/jobs/x/rollouts?step={2**31}",
        "/v1/jobs/x/rollouts?reward_min=nan",
        "/v1/jobs/x/rollouts?reward_min=inf",
    )
    with tenant.http() as http:
        for path in paths:
            check_problem(http.get(path), 422, "invalid")


@pytest.fixture
def small(database_url: str, world: World, tmp_path: Path) -> Iterator[str]:
    """A second gateway on the same database that takes bodies up to 1000 bytes."""
    environ = {
        "DATABASE_URL": database_url,
        "VENUS_HOME": str(tmp_path / "home"),
        "VENUS_REQUEST_BYTES": "1000",
    }
    with listening(Settings.from_env(environ)) as address:
        yield address


def chunks(size: int) -> Iterator[bytes]:
    """A body that does not say how long it is."""
    yield b'{"name": "'
    for _ in range(size // 100):
        yield b"x" * 100
    yield b'"}'


def test_a_body_that_says_it_is_too_large_is_refused(small: str, tenant: Tenant) -> None:
    headers = {"Authorization": f"Bearer {tenant.key}"}
    answer = httpx.post(f"{small}/v1/jobs", json={"name": "x" * 2000}, headers=headers)
    assert "1000 bytes" in check_problem(answer, 413, "too_large")["detail"]


def test_a_streamed_body_that_grows_too_large_is_refused(small: str, tenant: Tenant) -> None:
    headers = {"Authorization": f"Bearer {tenant.key}", "Content-Type": "application/json"}
    answer = httpx.post(f"{small}/v1/jobs", content=chunks(5_000), headers=headers)
    check_problem(answer, 413, "too_large")
    short = httpx.post(f"{small}/v1/jobs", content=chunks(100), headers=headers)
    check_problem(short, 422, "invalid")


def test_a_database_that_is_away_is_said_with_a_time_to_retry(tmp_path: Path) -> None:
    environ = {
        "DATABASE_URL": f"postgresql:///none?host={tmp_path}&user=nobody",
        "VENUS_HOME": str(tmp_path / "home"),
    }
    with listening(Settings.from_env(environ)) as address:
        answer = httpx.get(f"{address}/v1/jobs", headers={"X-API-Key": "vrl_x"}, timeout=30.0)
        health = httpx.get(f"{address}/healthz", timeout=30.0)
    check_problem(answer, 503, "unavailable")
    assert answer.headers["Retry-After"] == "1"
    assert health.status_code == 503


def test_nothing_is_half_created_by_a_refused_job(world: World, tenant: Tenant) -> None:
    tenant.environment()
    with tenant.http() as http:
        check_problem(http.post("/v1/jobs", json={**SPEC, "seed": -1}), 422, "invalid")
    for table in (t.job, t.attempt, t.job_event, t.operation):
        assert world.rows(table) == []


@pytest.mark.parametrize("name", ["", " ", "\t", "a\u202eb", "a\u200bb", "\u2066a", "a\x85"])
def test_a_name_that_is_blank_or_hides_text_is_refused_with_a_pointer(
    tenant: Tenant, name: str
) -> None:
    tenant.environment()
    job = tenant.job()
    with tenant.http() as http:
        for method, path, body in (
            ("POST", "/v1/jobs", {**SPEC, "name": name}),
            ("PATCH", f"/v1/jobs/{job['id']}", {"name": name}),
            ("POST", "/v1/environments", {"name": name}),
            ("POST", "/v1/datasets", {"name": name}),
        ):
            document = check_problem(http.request(method, path, json=body), 422, "invalid")
            assert document["errors"][0]["pointer"] == "/name", (method, path)
        assert http.post("/v1/jobs", json={**SPEC, "name": "نام نیکو ✓"}).status_code == 201


def test_an_unknown_value_of_a_filter_names_the_known_ones(tenant: Tenant) -> None:
    job = tenant.job()["id"]
    with tenant.http() as http:
        for path, known in (
            ("/v1/jobs?state=runing", "running"),
            ("/v1/checkpoints?state=x", "ready"),
            (f"/v1/jobs/{job}/rollouts?disposition=lost", "dropped"),
            (f"/v1/jobs/{job}/groups?purpose=x", "evaluation"),
            (f"/v1/jobs/{job}/logs?component=x", "grader"),
        ):
            document = check_problem(http.get(path), 422, "invalid")
            assert known in document["errors"][0]["message"], path
        assert http.get("/v1/jobs", params={"state": "validating"}).json()["data"]


def test_an_upload_that_says_it_is_no_archive_is_refused(tenant: Tenant) -> None:
    path = "/v1/environments/calc/versions"
    with tenant.http() as http:
        for given in ("text/html", "application/json", "application/x-www-form-urlencoded"):
            answer = http.post(path, content=b"x", headers={"Content-Type": given})
            check_problem(answer, 415, "unsupported_media_type")
        for given in ("application/gzip", "Application/X-Tar; a=b", "application/octet-stream"):
            answer = http.post(path, content=b"x", headers={"Content-Type": given})
            check_problem(answer, 422, "invalid")
        check_problem(http.post(path, content=b"x"), 422, "invalid")
        datasets = http.post("/v1/datasets/sums/versions", content=b"{}")
        check_problem(datasets, 415, "unsupported_media_type")
