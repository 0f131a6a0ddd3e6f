"""Another tenant's object does not exist: 404 on every route, never 403, and nothing changes."""

from typing import Any

import pytest

from stores import tables as t
from tests.integration.api.world import Tenant, World

READS = (
    "/v1/jobs/{job}",
    "/v1/jobs/{job}/events",
    "/v1/jobs/{job}/metrics",
    "/v1/jobs/{job}/progress",
    "/v1/jobs/{job}/schedule",
    "/v1/jobs/{job}/schedule/rollouts/{rollout}",
    "/v1/jobs/{job}/profile",
    "/v1/jobs/{job}/evaluations",
    "/v1/jobs/{job}/ledger",
    "/v1/jobs/{job}/groups",
    "/v1/jobs/{job}/rollouts",
    "/v1/jobs/{job}/checkpoints",
    "/v1/jobs/{job}/logs",
    "/v1/rollouts/{rollout}/logs",
    "/v1/rollouts/{rollout}/spans",
    "/v1/checkpoints/{checkpoint}/export",
    "/v1/groups/{group}",
    "/v1/rollouts/{rollout}",
    "/v1/rollouts/{rollout}/trajectory",
    "/v1/rollouts/{rollout}/branches",
    "/v1/checkpoints/{checkpoint}",
    "/v1/checkpoints/{checkpoint}/files/model.bin",
    "/v1/operations/{operation}",
    "/v1/sandboxes/{sandbox}",
    "/v1/environments/calc",
    "/v1/environments/calc/versions",
    "/v1/environments/calc/versions/1",
)

VERBS: tuple[tuple[str, str, Any], ...] = (
    ("DELETE", "/v1/sandboxes/{sandbox}", None),
    ("POST", "/v1/sandboxes/{sandbox}/pause", None),
    ("POST", "/v1/sandboxes/{sandbox}/resume", None),
    ("POST", "/v1/sandboxes/{sandbox}/fork", None),
    ("POST", "/v1/sandboxes/{sandbox}/snapshot", None),
    ("POST", "/v1/sandboxes/{sandbox}/timeout", {"lifetime_s": 5.0}),
    ("POST", "/v1/sandboxes/{sandbox}/exec", {"command": "true"}),
    ("PUT", "/v1/sandboxes/{sandbox}/files?path=a", None),
    ("GET", "/v1/sandboxes/{sandbox}/files?path=a", None),
    ("GET", "/v1/sandboxes/{sandbox}/metrics", None),
    ("POST", "/v1/rollouts/{rollout}/branch", {"turns": [0]}),
    ("POST", "/v1/jobs/{job}/pause", None),
    ("POST", "/v1/jobs/{job}/resume", None),
    ("DELETE", "/v1/jobs/{job}", None),
    ("DELETE", "/v1/checkpoints/{checkpoint}", None),
    ("PATCH", "/v1/checkpoints/{checkpoint}", {"keep": True}),
    ("POST", "/v1/checkpoints/{checkpoint}/export", {}),
    ("POST", "/v1/jobs/{job}/cancel", None),
    ("POST", "/v1/jobs/{job}/restart", {}),
    ("PATCH", "/v1/jobs/{job}", {"name": "mine now"}),
    ("POST", "/v1/checkpoints/{checkpoint}/generate?wait=0", {"prompt": "1+1"}),
)


def objects_of(tenant: Tenant) -> dict[str, str]:
    """One object of each kind."""
    job = tenant.ended()
    attempt = str(job["attempt_id"]).removeprefix("att_")
    names = {
        "job": str(job["id"]),
        "group": f"grp_{attempt}_000000000",
        "rollout": f"ro_{attempt}_000000000_000",
        "checkpoint": tenant.checkpoint(job),
        "operation": str(tenant.world.rows(t.operation)[0].id),
    }
    with tenant.sdk() as client:
        names["sandbox"] = client.sandboxes.create_group(1, wait_s=0).sandboxes[0].id
    shared = {
        "job_id": job["id"],
        "attempt_id": job["attempt_id"],
        "organization_id": tenant.organization_id,
    }
    tenant.world.add(
        t.rollout_group,
        id=names["group"],
        ordinal=0,
        purpose="train",
        task_id="t",
        environment_version_id="ev",
        policy_version=0,
        size=1,
        open=0,
        **shared,
    )
    tenant.world.add(t.rollout, id=names["rollout"], group_id=names["group"], index=0, **shared)
    return names


def test_no_route_shows_or_changes_an_object_of_another_tenant(
    world: World, tenant: Tenant
) -> None:
    names = objects_of(tenant)
    stranger = world.tenant("stranger")
    before = world.rows(t.job), world.rows(t.operation), world.rows(t.sandbox)
    with stranger.http() as http:
        for path in READS:
            answer = http.get(path.format(**names))
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
        for method, path, body in VERBS:
            answer = http.request(method, path.format(**names), json=body)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
        assert http.get("/v1/jobs").json()["data"] == []
        assert http.get("/v1/sandboxes").json()["data"] == []
        assert http.get("/v1/environments").json()["data"] == []
    assert (world.rows(t.job), world.rows(t.operation), world.rows(t.sandbox)) == before


def test_the_owner_sees_every_one_of_them(tenant: Tenant) -> None:
    names = objects_of(tenant)
    with tenant.http() as http:
        for path in READS:
            answer = http.get(path.format(**names))
            # Nothing was sampled and nothing exported: the owner is told that, and not 404 for all.
            expected = {"trajectory": 404, "export": 409}.get(path.rpartition("/")[2], 200)
            assert answer.status_code == expected, (path, answer.text)


def test_a_job_of_one_tenant_does_not_take_the_environment_of_another(
    world: World, tenant: Tenant
) -> None:
    tenant.environment("secretive")
    stranger = world.tenant("stranger")
    stranger.environment("calc")
    spec = {
        "name": "j",
        "model": {"base": "tiny-calc"},
        "environments": [{"ref": "secretive"}],
    }
    with stranger.http() as http:
        refused = http.post("/v1/jobs", json=spec)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["code"] == "unknown_environment"
    assert "Near: secretive" not in refused.text


def test_a_restart_does_not_take_the_checkpoint_of_another_job(tenant: Tenant) -> None:
    first, second = tenant.ended(), tenant.ended(name="second")
    checkpoint = tenant.checkpoint(first)
    with tenant.http() as http:
        refused = http.post(f"/v1/jobs/{second['id']}/restart", json={"checkpoint": checkpoint})
    assert refused.status_code == 404


@pytest.mark.parametrize("credentials", ["Bearer", "Bearer vrl_guess", "Basic abc", "vrl_guess"])
def test_no_route_answers_without_a_known_key(world: World, credentials: str) -> None:
    with world.http() as http:
        http.headers["Authorization"] = credentials
        for path in ("/v1/jobs", "/v1/models", "/v1/status", "/v1/environments", "/v1/projects"):
            answer = http.get(path)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
            assert answer.headers["WWW-Authenticate"] == "Bearer"
