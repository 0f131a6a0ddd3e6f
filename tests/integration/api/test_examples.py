"""Every example of the OpenAPI document is accepted as it stands."""

from typing import Any

import pytest
from sqlalchemy import func

from api.app import create_app
from api.examples import EXAMPLES
from stores import tables as t
from tests.integration.api.filled import Filled, stored
from tests.integration.api.world import Tenant, World

WAITING = ("/generate", "/export", "/branch", "/v1/sandboxes")

BODIES = [
    (method, path, one["summary"], one["value"])
    for path, operations in create_app().openapi()["paths"].items()
    for method, operation in operations.items()
    for one in operation.get("requestBody", {})
    .get("content", {})
    .get("application/json", {})
    .get("examples", {})
    .values()
]


def closed_rollout(tenant: Tenant) -> str:
    """One of four turns whose job has a checkpoint."""
    made = Filled(tenant)
    tenant.checkpoint(made.job)
    stored(made.world, made.rollouts[0])
    made.world.change(t.rollout, made.rollouts[0], turns=4, closed_at=func.now())
    return made.rollouts[0]


def test_the_document_has_them_all() -> None:
    assert len(BODIES) == sum(len(bodies) for bodies in EXAMPLES.values())


@pytest.mark.parametrize(
    ("method", "path", "summary", "body"), BODIES, ids=[f"{m} {p} {s}" for m, p, s, _ in BODIES]
)
def test_an_example_is_accepted(
    world: World, tenant: Tenant, method: str, path: str, summary: str, body: dict[str, Any]
) -> None:
    tenant.environment()
    with world.http() as admin:
        asked = {"name": "o", "organization_id": tenant.organization_id, "role": "owner"}
        organization = admin.post("/v1/api-keys", json=asked).json()
    keys = {
        "/v1/organizations": world.admin_key,
        "/v1/projects": organization["secret"],
        "/v1/api-keys": organization["secret"],
        "/v1/api-keys/{key_id}/rotate": world.admin_key,
    }
    names = {"key_id": organization["id"], "checkpoint_id": "", "name": "calc", "version": "1"}
    if "/secrets/" in path:
        names["name"] = "judge-key"
    if "{checkpoint_id}" in path:
        names["checkpoint_id"] = tenant.checkpoint(tenant.ended())
    if "{job_id}" in path:
        job = tenant.job()
        names["job_id"] = job["id"]
        tenant.checkpoint(job)
    if "{rollout_id}" in path:
        names["rollout_id"] = closed_rollout(tenant)
    if "{webhook_id}" in path:
        with tenant.sdk() as client:
            names["webhook_id"] = client.webhooks.create("https://example.com/hook").id
    if "{sandbox_id}" in path:
        with tenant.sdk() as client:
            names["sandbox_id"] = client.sandboxes.create_group(1, wait_s=0).sandboxes[0].id
    with world.http(keys.get(path, tenant.key)) as http:
        params = {"wait": 0} if path.endswith(WAITING) else {}
        answer = http.request(method, path.format(**names), json=body, params=params)
    assert answer.is_success, f"{summary}: {answer.text}"
