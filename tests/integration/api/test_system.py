"""Health, status and the model registry."""

from sqlalchemy import func

from stores import tables as t
from tests.integration.api.world import Tenant, World


def test_health_needs_no_key(world: World) -> None:
    with world.http() as http:
        del http.headers["Authorization"]
        assert http.get("/healthz").json() == {"status": "ok"}
        counted = http.get("/metrics").text
    assert 'venus_http_requests_total{method="GET",status="2xx"}' in counted


def test_status_counts_hosts_and_jobs_and_names_no_tenant(world: World, tenant: Tenant) -> None:
    with tenant.http() as http:
        assert http.get("/v1/status").json() == {"leader": None, "hosts": {}, "jobs": {}}
        tenant.job(name="very secret")
        world.add(
            t.leadership, id=1, term=3, address="127.0.0.1:1", key=b"k", backend_pid=1,
            heartbeat_at=func.now(),
        )  # fmt: skip
        answer = http.get("/v1/status")
    status = answer.json()
    assert status["leader"]["term"] == 3
    assert status["jobs"] == {"validating": 1}
    assert "secret" not in answer.text


def test_builtin_models_are_listed_with_their_context(tenant: Tenant) -> None:
    with tenant.http() as http:
        listed = {one["name"]: one for one in http.get("/v1/models").json()["data"]}
        assert http.get("/v1/models/tiny-calc").json() == listed["tiny-calc"]
        unknown = http.get("/v1/models/tiny-cal")
    assert listed["tiny-calc"]["context_tokens"] == 96
    assert unknown.status_code == 404
    assert "tiny-calc" in unknown.json()["detail"]
