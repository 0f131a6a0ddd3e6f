"""Secrets are written, listed by name and deleted; no answer and no row ever shows a value."""

import json
from typing import Any

import pytest

from infra.vault import KEY_FILE, Vault, secret_context
from stores import tables as t
from stores.secret_tables import secret
from tests.integration.api.world import SPEC, Tenant, World
from venusrl.client import (
    Client,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Patience,
    Unavailable,
)

VALUE = "canary-7d1f-value-of-a-secret"


def test_a_secret_is_stored_sealed_and_listed_by_name(world: World, tenant: Tenant) -> None:
    with tenant.sdk() as client:
        made = client.secrets.set("judge-key", VALUE)
        assert [one.name for one in client.secrets.list()] == ["judge-key"]
    (row,) = world.rows(secret)
    assert VALUE.encode() not in bytes(row.sealed)
    place = secret_context(tenant.project_id, "judge-key")
    assert Vault.of(world.settings).open(bytes(row.sealed), place) == VALUE
    assert made.name == "judge-key"


def test_no_answer_holds_the_value(tenant: Tenant) -> None:
    with tenant.http() as http:
        answers = [
            http.put("/v1/secrets/k", json={"value": VALUE}),
            http.get("/v1/secrets"),
            http.put("/v1/secrets/k", json={"value": VALUE, "extra": VALUE}),
            http.put("/v1/secrets/k", json={"value": [VALUE]}),
            http.put("/v1/secrets/k", json={"value": VALUE + "\0"}),
            http.put("/v1/secrets/k", json={"value": VALUE * 1000}),
            http.put("/v1/secrets/k", content=f'{{"value": "{VALUE}"'),
            http.put("/v1/secrets/k%20k", json={"value": VALUE}),
            http.post("/v1/secrets", json={"value": VALUE}),
        ]
    assert [one.status_code for one in answers] == [200, 200, 422, 422, 422, 422, 422, 422, 405]
    for one in answers:
        assert VALUE not in one.text
        assert VALUE not in str(one.headers)


def test_writing_again_replaces_the_value_and_keeps_one_row(world: World, tenant: Tenant) -> None:
    with tenant.sdk() as client:
        first = client.secrets.set("k", VALUE)
        second = client.secrets.set("k", "another-value-of-it")
    assert (second.id, second.created_at) == (first.id, first.created_at)
    assert second.updated_at > first.updated_at
    (row,) = world.rows(secret)
    opened = Vault.of(world.settings).open(
        bytes(row.sealed), secret_context(tenant.project_id, "k")
    )
    assert opened == "another-value-of-it"


def test_a_deleted_secret_leaves_no_row(world: World, tenant: Tenant) -> None:
    with tenant.sdk() as client:
        client.secrets.set("k", VALUE)
        client.secrets.delete("k")
        with pytest.raises(NotFound):
            client.secrets.delete("k")
    assert world.rows(secret) == []


def test_another_tenants_secrets_are_unseen(world: World, tenant: Tenant) -> None:
    with tenant.sdk() as client:
        client.secrets.set("k", VALUE)
    with world.tenant("other").sdk() as other:
        assert list(other.secrets.list()) == []
        with pytest.raises(NotFound):
            other.secrets.delete("k")


def test_a_viewer_lists_and_does_not_write(world: World) -> None:
    with world.tenant("watchers", role="viewer").sdk() as client:
        assert list(client.secrets.list()) == []
        with pytest.raises(Forbidden):
            client.secrets.set("k", VALUE)


@pytest.mark.parametrize("value", ["", "short", "x" * 20_000])
def test_a_value_outside_the_bounds_is_refused(tenant: Tenant, value: str) -> None:
    with tenant.sdk() as client, pytest.raises(Invalid) as refused:
        client.secrets.set("k", value)
    assert [one.pointer for one in refused.value.errors] == ["/value"]


def test_text_that_cannot_be_stored_is_refused(tenant: Tenant) -> None:
    with tenant.http() as http:
        answer = http.put("/v1/secrets/k", content='{"value": "\\ud800 lone surrogate"}')
    assert answer.status_code == 422


def test_a_job_names_secrets_that_exist(tenant: Tenant) -> None:
    tenant.environment()
    spec: dict[str, Any] = {**SPEC, "secrets": {"TOKEN": "hub-token"}}
    with tenant.sdk() as client:
        (finding,) = client.jobs.validate(spec).findings
        assert (finding.pointer, finding.code) == ("/secrets/TOKEN", "unknown_secret")
        client.secrets.set("hub-token", VALUE)
        job = client.jobs.create(spec)
        with pytest.raises(Conflict) as refused:
            client.secrets.delete("hub-token")
        assert refused.value.code == "in_use"
        assert job.id in refused.value.detail


def test_a_secret_of_a_judge_cannot_be_deleted_while_its_job_goes_on(tenant: Tenant) -> None:
    tenant.environment()
    judge = {"url": "https://judge.example/v1", "model": "m", "secret": "judge-key"}
    with tenant.sdk() as client:
        client.secrets.set("judge-key", VALUE)
        client.jobs.create({**SPEC, "judges": {"j": judge}})
        with pytest.raises(Conflict):
            client.secrets.delete("judge-key")


def test_without_a_usable_key_the_refusal_says_what_to_do(world: World, tenant: Tenant) -> None:
    (world.settings.home / KEY_FILE).unlink()
    with Client(world.address, tenant.key, patience=Patience(tries=1)) as client:
        with pytest.raises(Unavailable, match="VENUS_SECRET_KEY"):
            client.secrets.set("k", VALUE)
        (world.settings.home / KEY_FILE).write_text("damaged")
        with pytest.raises(Unavailable, match="no usable key"):
            client.secrets.set("k", VALUE)


def test_no_row_of_the_database_shows_the_value(world: World, tenant: Tenant) -> None:
    tenant.environment()
    with tenant.sdk() as client:
        client.secrets.set("hub-token", VALUE)
        client.jobs.create({**SPEC, "secrets": {"TOKEN": "hub-token"}})
    for table in t.metadata.sorted_tables:
        for row in world.rows(table):
            assert VALUE not in json.dumps([str(one) for one in row])
