"""Organizations, projects and keys: who may what, and what is kept of a secret."""

from datetime import UTC, datetime, timedelta

import pytest

from stores import tables as t
from tests.integration.api.world import SPEC, Tenant, World


def test_only_a_hash_and_a_prefix_of_a_key_are_stored(world: World, tenant: Tenant) -> None:
    stored = [str(value) for row in world.rows(t.api_key) for value in row]
    answers = [str(row.response) for row in world.rows(t.idempotency)]
    for secret in (tenant.key, world.admin_key):
        assert not any(secret in text for text in stored + answers)
        assert secret[:12] in stored


def test_lists_of_keys_show_no_secret_and_no_hash(world: World, tenant: Tenant) -> None:
    with world.http() as admin:
        listed = admin.get("/v1/api-keys", params={"organization_id": tenant.organization_id})
    (key,) = listed.json()["data"]
    assert key["prefix"] == tenant.key[:12]
    assert not {"secret", "secret_hash"} & set(key)
    assert tenant.key not in listed.text


def test_bootstrap_makes_one_admin_key_however_often_it_runs(world: World) -> None:
    import asyncio

    from api import bootstrap

    again = [asyncio.run(bootstrap.ensure(world.settings)) for _ in range(2)]
    assert set(again) == {world.admin_key}
    assert len(world.rows(t.api_key)) == 1
    assert (world.settings.home / bootstrap.KEY_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
def test_a_key_is_taken_from_either_header(tenant: Tenant, header: str) -> None:
    value = tenant.key if header == "X-API-Key" else f"Bearer {tenant.key}"
    with tenant.http() as http:
        del http.headers["Authorization"]
        assert http.get("/v1/jobs").status_code == 401
        assert http.get("/v1/jobs", headers={header: value}).status_code == 200


def test_a_revoked_key_is_refused_at_once(world: World, tenant: Tenant) -> None:
    with world.http() as admin, tenant.http() as http:
        key_id = admin.get(
            "/v1/api-keys", params={"organization_id": tenant.organization_id}
        ).json()["data"][0]["id"]
        assert http.get("/v1/jobs").status_code == 200
        assert admin.delete(f"/v1/api-keys/{key_id}").status_code == 204
        assert http.get("/v1/jobs").status_code == 401
        assert admin.delete(f"/v1/api-keys/{key_id}").status_code == 204


def test_an_expired_key_is_refused(world: World, tenant: Tenant) -> None:
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    with world.http() as admin:
        body = {"name": "old", "project_id": tenant.project_id, "expires_at": later}
        made = admin.post("/v1/api-keys", json=body).json()
        with world.http(made["secret"]) as http:
            assert http.get("/v1/jobs").status_code == 200
            past = datetime.now(UTC) - timedelta(seconds=5)
            world.change(t.api_key, made["id"], expires_at=past)
            assert http.get("/v1/jobs").status_code == 401
        assert admin.post(f"/v1/api-keys/{made['id']}/rotate").status_code == 409


@pytest.mark.parametrize("end", ["2020-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"])
def test_a_key_that_would_have_ended_already_is_not_made(
    world: World, tenant: Tenant, end: str
) -> None:
    body = {"name": "old", "project_id": tenant.project_id, "expires_at": end}
    before = len(world.rows(t.api_key))
    with world.http() as admin:
        refused = admin.post("/v1/api-keys", json=body)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/expires_at")
    assert len(world.rows(t.api_key)) == before


def test_a_viewer_reads_and_changes_nothing(world: World) -> None:
    viewer = world.tenant(role="viewer")
    with viewer.http() as http:
        assert http.get("/v1/jobs").status_code == 200
        assert http.post("/v1/jobs/validate", json=SPEC).status_code == 200
        refused = http.post("/v1/jobs", json=SPEC)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_a_developer_makes_no_keys_and_no_projects(tenant: Tenant) -> None:
    with tenant.http() as http:
        key = http.post("/v1/api-keys", json={"name": "k", "project_id": tenant.project_id})
        project = http.post("/v1/projects", json={"name": "p"})
        organization = http.post("/v1/organizations", json={"name": "o"})
    assert [one.status_code for one in (key, project, organization)] == [403, 403, 403]


def test_a_key_of_the_organization_makes_projects_and_keys_but_no_organization(
    world: World, tenant: Tenant
) -> None:
    with world.http() as admin:
        body = {"name": "org", "organization_id": tenant.organization_id, "role": "admin"}
        secret = admin.post("/v1/api-keys", json=body).json()["secret"]
    with world.http(secret) as owner:
        project = owner.post("/v1/projects", json={"name": "second"})
        assert project.status_code == 201
        key = owner.post("/v1/api-keys", json={"name": "k", "project_id": project.json()["id"]})
        assert key.status_code == 201
        assert owner.post("/v1/organizations", json={"name": "o"}).status_code == 403
        assert owner.post("/v1/jobs", json=SPEC).status_code == 403
    with world.http(key.json()["secret"]) as http:
        assert http.get("/v1/jobs").status_code == 200


def test_a_key_without_a_project_needs_the_role_of_an_admin(world: World, tenant: Tenant) -> None:
    with world.http() as admin:
        body = {"name": "k", "organization_id": tenant.organization_id, "role": "developer"}
        refused = admin.post("/v1/api-keys", json=body)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/project_id"


def test_an_admin_of_one_organization_does_not_see_another(world: World, tenant: Tenant) -> None:
    other = world.tenant("other")
    with world.http() as admin:
        body = {"name": "org", "organization_id": other.organization_id, "role": "admin"}
        secret = admin.post("/v1/api-keys", json=body).json()["secret"]
        key_id = admin.get(
            "/v1/api-keys", params={"organization_id": tenant.organization_id}
        ).json()["data"][0]["id"]
    foreign = {"name": "k", "project_id": tenant.project_id}
    with world.http(secret) as owner:
        seen = owner.get("/v1/projects", params={"organization_id": tenant.organization_id})
        assert [one["id"] for one in seen.json()["data"]] == [other.project_id]
        assert owner.delete(f"/v1/api-keys/{key_id}").status_code == 404
        assert owner.post("/v1/api-keys", json=foreign).status_code == 404
        named = {"name": "p", "organization_id": tenant.organization_id}
        assert owner.post("/v1/projects", json=named).status_code == 404
    with tenant.http() as http:
        assert http.get("/v1/jobs").status_code == 200


def test_an_admin_of_a_project_stays_inside_it(world: World, tenant: Tenant) -> None:
    with world.http() as admin:
        body = {"name": "a", "project_id": tenant.project_id, "role": "admin"}
        secret = admin.post("/v1/api-keys", json=body).json()["secret"]
        named = {"name": "second", "organization_id": tenant.organization_id}
        second = admin.post("/v1/projects", json=named).json()["id"]
    with world.http(secret) as http:
        assert http.post("/v1/projects", json={"name": "third"}).status_code == 403
        assert (
            http.post("/v1/api-keys", json={"name": "k", "project_id": second}).status_code == 404
        )
        assert http.post("/v1/api-keys", json={"name": "k", "role": "admin"}).status_code == 403


def test_a_project_name_is_taken_once_in_an_organization(world: World, tenant: Tenant) -> None:
    with world.http() as admin:
        body = {"name": "main", "organization_id": tenant.organization_id}
        refused = admin.post("/v1/projects", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "name_taken")


def test_a_rotated_key_keeps_name_role_and_scope_and_the_old_one_ends(
    world: World, tenant: Tenant
) -> None:
    with world.http() as admin:
        body = {"name": "ci", "project_id": tenant.project_id, "role": "viewer"}
        old = admin.post("/v1/api-keys", json=body).json()
        path = f"/v1/api-keys/{old['id']}/rotate"
        once = {"Idempotency-Key": "once"}
        new = admin.post(path, json={"grace_s": 3600}, headers=once).json()
        assert {name: new[name] for name in ("name", "role", "project_id")} == {
            "name": "ci", "role": "viewer", "project_id": tenant.project_id,
        }  # fmt: skip
        assert admin.post(path, json={"grace_s": 3600}, headers=once).json()["secret"] == ""
        with world.http(old["secret"]) as http:
            assert http.get("/v1/jobs").status_code == 200
        assert admin.get(f"/v1/api-keys/{old['id']}").json()["expires_at"] is not None
        at_once = admin.post(f"/v1/api-keys/{new['id']}/rotate").json()
        assert admin.post(f"/v1/api-keys/{new['id']}/rotate").status_code == 409
    with world.http(new["secret"]) as http:
        assert http.get("/v1/jobs").status_code == 401
    with world.http(at_once["secret"]) as http:
        assert http.get("/v1/jobs").status_code == 200


def test_nobody_rotates_a_key_that_is_not_his_or_stands_above_him(
    world: World, tenant: Tenant
) -> None:
    other = world.tenant("other")
    with world.http() as admin:
        body = {"name": "a", "project_id": tenant.project_id, "role": "admin"}
        secret = admin.post("/v1/api-keys", json=body).json()["secret"]
        owner = admin.post("/v1/api-keys", json={**body, "role": "owner"}).json()["id"]
        foreign = admin.get(
            "/v1/api-keys", params={"organization_id": other.organization_id}
        ).json()["data"][0]["id"]
    with world.http(secret) as http:
        assert http.post(f"/v1/api-keys/{owner}/rotate").status_code == 403
        assert http.post(f"/v1/api-keys/{foreign}/rotate").status_code == 404
        assert http.get(f"/v1/api-keys/{foreign}").status_code == 404
    with tenant.http() as http:
        assert http.post(f"/v1/api-keys/{owner}/rotate").status_code == 403


def test_keys_projects_and_organizations_are_paged(world: World, tenant: Tenant) -> None:
    organization = {"organization_id": tenant.organization_id}
    with world.http() as admin:
        for name in ("b", "c"):
            admin.post("/v1/projects", json={"name": name, **organization})
            admin.post("/v1/api-keys", json={"name": name, "project_id": tenant.project_id})
            admin.post("/v1/organizations", json={"name": name})
        for path in ("/v1/projects", "/v1/api-keys", "/v1/organizations"):
            first = admin.get(path, params={**organization, "limit": 2}).json()
            rest = {**organization, "limit": 2, "after": first["next"]}
            second = admin.get(path, params=rest).json()
            assert (len(first["data"]), first["has_more"]) == (2, True), path
            assert (len(second["data"]), second["has_more"]) == (1, False), path
