"""Audit events: every call that may change something leaves one, whatever the route and the answer."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from api.app import create_app
from api.audit.call import CHANGES_NOTHING
from api.examples import EXAMPLES
from stores import tables as t
from tests.integration.api.world import SPEC, Tenant, World

MUTATING = sorted(
    (method, path)
    for path, operations in create_app().openapi()["paths"].items()
    for method in operations
    if method in ("post", "put", "patch", "delete") and path not in CHANGES_NOTHING
)


@pytest.fixture
def admin(world: World) -> Tenant:
    """A project's key that may read its audit events."""
    return world.tenant(role="admin")


def events(tenant: Tenant, **filters: Any) -> list[dict[str, Any]]:
    """The audit events as the API shows them."""
    with tenant.http() as http:
        answer = http.get("/v1/audit-events", params={"limit": 200, **filters})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


@pytest.mark.parametrize(("method", "path"), MUTATING, ids=[f"{m} {p}" for m, p in MUTATING])
def test_no_route_that_may_change_something_is_without_an_event(
    world: World, admin: Tenant, method: str, path: str
) -> None:
    body = next(iter(EXAMPLES.get((method, path), {"": {}}).values()))
    address = re.sub(r"\{[a-z_]+\}", "1", path)
    with admin.http(**{"X-Request-Id": "the-call"}) as http:
        # Nobody here starts a sandbox that could be waited for.
        params = {"wait": 0} if path == "/v1/sandboxes" else {}
        answer = http.request(method, address, json=body, params=params)
    assert answer.status_code < 500, answer.text
    rows = [row for row in world.rows(t.audit_event) if row.request_id == "the-call"]
    assert [row.outcome for row in rows] == ["done" if answer.is_success else "refused"]
    assert rows[0].code == (None if answer.is_success else answer.json()["code"])
    assert rows[0].address == "127.0.0.1"
    assert (rows[0].organization_id, rows[0].project_id) == (
        admin.organization_id,
        admin.project_id,
    )


def test_the_gateway_has_no_database_beside_the_audited_one() -> None:
    api = Path(__file__).resolve().parents[3] / "api"
    made = {
        path.relative_to(api).as_posix()
        for path in api.rglob("*.py")
        if re.search(r"(?<![A-Za-z])Database\(", path.read_text())
    }
    # A command on the machine, not a call.
    assert made == {"bootstrap.py"}


def test_what_is_done_names_actor_target_and_what_was_made(world: World, admin: Tenant) -> None:
    job = admin.ended()
    checkpoint = admin.checkpoint(job)
    with admin.http() as http:
        copy = http.post(f"/v1/jobs/{job['id']}/branch", json={"checkpoint": checkpoint}).json()
        http.patch(f"/v1/jobs/{job['id']}", json={"name": "renamed"})
        hook = http.post("/v1/webhooks", json={"url": "https://example.com/x"}).json()
        http.delete(f"/v1/webhooks/{hook['id']}")
    shown = [(e["action"], e["target"], e["created"], e["outcome"]) for e in events(admin)]
    assert shown == [
        ("jobs.create", job["id"], job["id"], "done"),
        ("jobs.branch", job["id"], copy["id"], "done"),
        ("jobs.update", job["id"], None, "done"),
        ("webhooks.create", hook["id"], hook["id"], "done"),
        ("webhooks.delete", hook["id"], None, "done"),
    ]
    keys = {row.id for row in world.rows(t.api_key) if row.project_id == admin.project_id}
    assert {e["actor"] for e in events(admin)} == keys


def test_an_event_is_there_if_and_only_if_its_change_is(world: World, admin: Tenant) -> None:
    admin.environment()
    with admin.http(**{"Idempotency-Key": "same"}) as http:
        first, again = (http.post("/v1/jobs", json=dict(SPEC)) for _ in range(2))
        other = http.post("/v1/jobs", json={**SPEC, "name": "another"})
    assert (first.json()["id"], other.status_code) == (again.json()["id"], 409)
    assert [(e["outcome"], e["code"]) for e in events(admin)] == [
        ("done", None),
        ("refused", "idempotency_conflict"),
    ]
    assert len(world.rows(t.job)) == 1


def test_what_only_answers_leaves_none(admin: Tenant) -> None:
    admin.environment()
    with admin.http() as http:
        assert http.post("/v1/jobs/validate", json=dict(SPEC)).status_code == 200
        assert http.get("/v1/jobs").status_code == 200
        assert http.get("/v1/jobs/job_none").status_code == 404
    assert events(admin) == []


def test_a_stranger_without_a_key_leaves_none(world: World) -> None:
    before = len(world.rows(t.audit_event))
    with world.http("vrl_guess") as http:
        assert http.post("/v1/jobs", json=dict(SPEC)).status_code == 401
    assert len(world.rows(t.audit_event)) == before


def test_no_event_holds_a_body_or_a_secret(world: World, admin: Tenant) -> None:
    with admin.http() as http:
        made = http.post(
            "/v1/webhooks", json={"url": "https://example.com/t0ken", "description": "wh1sper"}
        ).json()
        key = http.post("/v1/api-keys", json={"name": "n", "project_id": admin.project_id}).json()
    text = json.dumps([list(map(str, row)) for row in world.rows(t.audit_event)])
    for said in ("t0ken", "wh1sper", made["secret"], key["secret"], world.admin_key, admin.key):
        assert said not in text


def test_events_are_filtered_and_paged(admin: Tenant) -> None:
    job = admin.job()
    with admin.http() as http:
        http.post(f"/v1/jobs/{job['id']}/pause")
        http.post("/v1/jobs/job_none/pause")
        found = http.get("/v1/audit-events", params={"limit": 2}).json()
        rest = http.get("/v1/audit-events", params={"limit": 2, "after": found["next"]}).json()
    assert [one["action"] for one in found["data"] + rest["data"]] == [
        "jobs.create",
        "jobs.pause",
        "jobs.pause",
    ]
    assert (found["has_more"], rest["has_more"]) == (True, False)
    assert [e["action"] for e in events(admin, target=job["id"])] == ["jobs.create", "jobs.pause"]
    assert [e["target"] for e in events(admin, outcome="refused")] == ["job_none"]
    assert [e["action"] for e in events(admin, action="jobs.create")] == ["jobs.create"]
    assert len(events(admin, actor=found["data"][0]["actor"])) == 3
    assert events(admin, actor="key_other") == []
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    assert len(events(admin, since=(now - hour).isoformat())) == 3
    assert events(admin, since=(now + hour).isoformat()) == []
    assert events(admin, until=(now - hour).isoformat()) == []
    assert len(events(admin, until=(now + hour).isoformat())) == 3


def test_events_belong_to_their_tenant_and_need_an_admin(world: World, admin: Tenant) -> None:
    admin.job()
    assert events(world.tenant("stranger", role="admin")) == []
    developer = world.tenant("third")
    with developer.http() as http:
        assert http.get("/v1/audit-events").status_code == 403
    with world.http() as http:
        asked = {"name": "o", "organization_id": admin.organization_id, "role": "admin"}
        organization = http.post("/v1/api-keys", json=asked).json()
        everything = http.get("/v1/audit-events", params={"limit": 200}).json()["data"]
    with world.http(organization["secret"]) as http:
        own = http.get("/v1/audit-events").json()["data"]
    assert {one["organization_id"] for one in own} == {admin.organization_id}
    assert {one["action"] for one in everything} >= {"organizations.create", "jobs.create"}


@pytest.mark.parametrize(
    "statement",
    ["update audit_event set actor = 'nobody'", "delete from audit_event", "truncate audit_event"],
)
def test_no_event_is_ever_changed(world: World, admin: Tenant, statement: str) -> None:
    admin.job()
    with psycopg.connect(world.settings.database_url, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
            connection.execute(statement.encode())
        count = connection.execute("select count(*) from audit_event").fetchone()
    assert count is not None
    assert count[0] > 0
