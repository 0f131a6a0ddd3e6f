"""Webhooks over the API: what is shown once, what is refused, and who sees what."""

from typing import Any

import pytest

from api.webhooks.service import WEBHOOKS_MAX
from infra.webhook_key import KEY_FILE
from stores import tables as t
from tests.integration.api.world import Tenant, World
from venusrl.client import Conflict, NotFound

URL = "https://example.com/hook"


def test_a_secret_is_in_two_answers_and_stored_nowhere(world: World, tenant: Tenant) -> None:
    with tenant.sdk() as client:
        made = client.webhooks.create(URL)
        rotated = client.webhooks.rotate(made.id)
        assert made.secret.startswith("whsec_")
        assert rotated.secret != made.secret
        assert not hasattr(client.webhooks.get(made.id), "secret")
        assert not hasattr(next(iter(client.webhooks.list())), "secret")
    stored = [
        str(value)
        for table in (t.webhook, t.idempotency)
        for row in world.rows(table)
        for value in row
    ]
    for secret in (made.secret, rotated.secret):
        assert not any(secret.removeprefix("whsec_") in text for text in stored)
    assert (world.settings.home / KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_a_repeated_request_gets_the_same_answer_without_the_secret(tenant: Tenant) -> None:
    with tenant.http(**{"Idempotency-Key": "once"}) as http:
        first, again = (http.post("/v1/webhooks", json={"url": URL}) for _ in range(2))
        path = f"/v1/webhooks/{first.json()['id']}/rotate"
        rotated, repeated = (
            http.post(path, json={"grace_s": 60}, headers={"Idempotency-Key": "other"})
            for _ in range(2)
        )
    for shown, later in ((first, again), (rotated, repeated)):
        assert shown.json()["secret"].startswith("whsec_")
        assert later.json() == {**shown.json(), "secret": ""}
        assert later.status_code == shown.status_code
        assert later.headers["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({"url": "ftp://example.com"}, "/url", "string_pattern_mismatch"),
        ({"url": "http://example.com"}, "/url", "not_encrypted"),
        ({"url": "https://user:word@example.com"}, "/url", "bad_url"),
        ({"url": "https://example.com/#part"}, "/url", "bad_url"),
        ({"url": "https://[::1"}, "/url", "bad_url"),
        ({"url": "https://example.com:port"}, "/url", "bad_url"),
        ({"url": "https://localhost"}, "/url", "address_refused"),
        ({"url": "https://127.0.0.1"}, "/url", "address_refused"),
        ({"url": "https://169.254.169.254/latest"}, "/url", "address_refused"),
        ({"url": URL, "types": []}, "/types", "too_short"),
        ({"url": URL, "types": ["job"]}, "/types/0", "string_pattern_mismatch"),
        ({"url": URL, "secret": "mine"}, "/secret", "extra_forbidden"),
    ],
)  # fmt: skip
def test_what_is_never_called_is_refused_with_a_pointer(
    world: World, tenant: Tenant, body: dict[str, Any], pointer: str, code: str
) -> None:
    with tenant.http() as http:
        refused = http.post("/v1/webhooks", json=body)
        found = refused.json()["errors"]
        assert (refused.status_code, found[0]["pointer"], found[0]["code"]) == (422, pointer, code)
    assert world.rows(t.webhook) == []


def test_a_changed_address_is_checked_too(tenant: Tenant) -> None:
    with tenant.sdk() as client, tenant.http() as http:
        hook = client.webhooks.create(URL)
        refused = http.patch(f"/v1/webhooks/{hook.id}", json={"url": "https://10.0.0.1"})
        assert refused.status_code == 422
        assert client.webhooks.get(hook.id).url == URL
        assert client.webhooks.update(hook.id, types=["job.*"]).types == ["job.*"]
        assert client.webhooks.update(hook.id, description="d").types == ["job.*"]


def test_a_project_has_a_bounded_number_of_them(tenant: Tenant) -> None:
    with tenant.sdk() as client:
        made = [client.webhooks.create(URL) for _ in range(WEBHOOKS_MAX)]
        with pytest.raises(Conflict):
            client.webhooks.create(URL)
        client.webhooks.delete(made[0].id)
        client.webhooks.create(URL)


def test_deliveries_are_filtered_and_paged(tenant: Tenant) -> None:
    with tenant.sdk() as client, tenant.http() as http:
        hook = client.webhooks.create(URL)
        sent = [client.webhooks.test(hook.id) for _ in range(3)]
        path = f"/v1/webhooks/{hook.id}/deliveries"
        page = http.get(path, params={"limit": 2}).json()
        rest = http.get(path, params={"limit": 2, "after": page["next"]}).json()
        assert [one["id"] for one in page["data"] + rest["data"]] == [one.id for one in sent]
        assert http.get(path, params={"state": "failed"}).json()["data"] == []
        assert len(http.get(path, params={"type": "webhook.test"}).json()["data"]) == 3


def test_a_deleted_webhook_takes_its_deliveries_along(world: World, tenant: Tenant) -> None:
    with tenant.sdk() as client:
        hook = client.webhooks.create(URL)
        client.webhooks.test(hook.id)
        client.webhooks.delete(hook.id)
        with pytest.raises(NotFound):
            client.webhooks.delete(hook.id)
    assert world.rows(t.webhook_delivery) == []


def test_a_webhook_of_another_tenant_does_not_exist(world: World, tenant: Tenant) -> None:
    with tenant.sdk() as client:
        hook = client.webhooks.create(URL)
        delivery = client.webhooks.test(hook.id)
    path = f"/v1/webhooks/{hook.id}"
    with world.tenant("stranger").http() as http:
        assert http.get("/v1/webhooks").json()["data"] == []
        for method, address, body in (
            ("GET", path, None),
            ("PATCH", path, {"active": False}),
            ("DELETE", path, None),
            ("POST", f"{path}/rotate", {}),
            ("POST", f"{path}/test", None),
            ("GET", f"{path}/deliveries", None),
            ("GET", f"{path}/deliveries/{delivery.id}", None),
            ("POST", f"{path}/deliveries/{delivery.id}/redeliver", None),
        ):
            answer = http.request(method, address, json=body)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), address


def test_a_viewer_changes_nothing(world: World) -> None:
    viewer = world.tenant(role="viewer")
    with viewer.http() as http:
        assert http.post("/v1/webhooks", json={"url": URL}).status_code == 403
        assert http.get("/v1/webhooks").status_code == 200
