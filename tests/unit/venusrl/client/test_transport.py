"""Retries that never do a thing twice, and refusals as typed errors."""

import httpx
import pytest

from tests.unit.venusrl.client.playing import Script, job, page, problem
from venusrl import Client
from venusrl.client import (
    ApiError,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Invalid,
    NotFound,
    RateLimited,
    ServerError,
    TooLarge,
    Unauthorized,
    Unavailable,
    UsageError,
    VenusError,
)

CREATED = httpx.Response(201, json=job())
LOST = httpx.ReadError("the answer was lost")


def test_a_post_keeps_its_idempotency_key_over_all_tries() -> None:
    script = Script([LOST, problem(503, "unavailable"), httpx.ConnectError("refused"), CREATED])
    assert script.client().jobs.create({"name": "j"}).id == "job_1"
    keys = [request.headers["Idempotency-Key"] for request in script.requests]
    assert len(keys) == 4
    assert len(set(keys)) == 1
    assert len({request.content for request in script.requests}) == 1


def test_two_posts_have_two_idempotency_keys() -> None:
    script = Script([CREATED])
    with script.client() as client:
        client.jobs.create({"name": "j"})
        client.jobs.create({"name": "j"})
    assert len({request.headers["Idempotency-Key"] for request in script.requests}) == 2


def test_reads_carry_no_idempotency_key() -> None:
    script = Script([CREATED])
    script.client().jobs.get("job_1")
    assert "Idempotency-Key" not in script.requests[0].headers


def test_pauses_grow_up_to_a_bound() -> None:
    script = Script([LOST])
    with pytest.raises(ConnectionFailed):
        script.client(tries=9).jobs.get("job_1")
    assert script.slept == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_the_server_says_when_to_try_again() -> None:
    busy = problem(429, "rate_limited")
    busy.headers["Retry-After"] = "7"
    script = Script([busy, CREATED])
    script.client().jobs.get("job_1")
    assert script.slept == [7.0]


def test_pauses_grow_although_the_server_asks_for_a_short_one_each_time() -> None:
    away = problem(503, "unavailable")
    away.headers["Retry-After"] = "1"
    script = Script([away])
    with pytest.raises(Unavailable):
        script.client(tries=7).jobs.get("job_1")
    assert script.slept == [1.0, 1.0, 1.0, 2.0, 4.0, 8.0]


def test_a_refusal_is_not_tried_again() -> None:
    script = Script([problem(409, "job_ended")])
    with pytest.raises(Conflict):
        script.client().jobs.pause("job_1")
    assert len(script.requests) == 1


def test_a_patch_that_guards_against_others_is_sent_once() -> None:
    script = Script([LOST])
    with pytest.raises(Unavailable):
        script.client().jobs.update("job_1", name="n", etag='"e"')
    assert len(script.requests) == 1
    assert script.requests[0].headers["If-Match"] == '"e"'


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (412, Conflict),
        (413, TooLarge),
        (422, Invalid),
        (429, RateLimited),
        (500, ServerError),
        (503, Unavailable),
        (418, ApiError),
    ],
)
def test_every_status_is_a_typed_error_with_code_and_request_id(
    status: int, kind: type[ApiError]
) -> None:
    finding = {"pointer": "/name", "code": "missing", "message": "Field required", "hint": "Add it"}
    script = Script([problem(status, "some_code", errors=[finding])])
    with pytest.raises(ApiError) as caught:
        script.client(tries=2).jobs.get("job_1")
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.code, error.request_id) == (status, "some_code", "req_1")
    assert [one.pointer for one in error.errors] == ["/name"]
    for part in ("some_code", "/name", "Add it", "req_1"):
        assert part in str(error)


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"errors": [3, {"x": 1}]}'])
def test_an_answer_of_another_form_is_still_a_typed_error(content: bytes) -> None:
    script = Script([httpx.Response(502, content=content)])
    with pytest.raises(Unavailable) as caught:
        script.client(tries=1).jobs.get("job_1")
    assert caught.value.status == 502


def test_no_answer_at_all_is_unavailable_with_status_zero() -> None:
    script = Script([httpx.ConnectError("refused")])
    with pytest.raises(Unavailable) as caught:
        script.client(tries=2).jobs.get("job_1")
    assert caught.value.status == 0
    assert "http://api" in str(caught.value)


def test_lists_fetch_page_after_page() -> None:
    script = Script([page([job(id="job_1")], "job_1"), page([job(id="job_2")])])
    assert [one.id for one in script.client().jobs.list()] == ["job_1", "job_2"]
    after = [request.url.params.get("after") for request in script.requests]
    assert after == [None, "job_1"]


def test_fields_of_a_newer_server_are_ignored() -> None:
    script = Script([httpx.Response(200, json=job(new_field=1))])
    assert script.client().jobs.get("job_1").id == "job_1"


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENUS_API_URL", "http://somewhere:1/")
    monkeypatch.setenv("VENUS_API_KEY", "vrl_env")
    with Client() as client:
        assert client.base_url == "http://somewhere:1"
    monkeypatch.delenv("VENUS_API_KEY")
    with pytest.raises(VenusError, match="VENUS_API_KEY"):
        Client()


def test_a_key_whose_secret_was_lost_is_revoked_and_made_anew() -> None:
    def key(id: str, secret: str) -> httpx.Response:
        record = {
            "id": id,
            "organization_id": "o",
            "project_id": "p",
            "name": "k",
            "role": "viewer",
        }
        record |= {"prefix": "vrl_", "created_at": "2026-01-01T00:00:00Z", "secret": secret}
        return httpx.Response(201, json=record)

    script = Script([key("key_1", ""), httpx.Response(204), key("key_2", "vrl_s")])
    made = script.client().keys.create("k", "prj_1")
    assert (made.id, made.secret) == ("key_2", "vrl_s")
    assert [request.method for request in script.requests] == ["POST", "DELETE", "POST"]
    assert script.requests[1].url.path.endswith("/key_1")


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), float("-inf"), {1}, object(), "\ud800"],
    ids=["nan", "inf", "-inf", "set", "object", "surrogate"],
)
def test_what_json_cannot_say_is_a_usage_error_and_never_sent(value: object) -> None:
    script = Script([CREATED])
    for body in ({"name": value}, {"stop": {"max_epochs": [value]}}):
        with pytest.raises(UsageError, match="cannot be said in JSON"):
            script.client().jobs.create(body)
    assert script.requests == []


def test_a_lost_secret_of_a_webhook_is_replaced() -> None:
    hook = {
        "id": "whk_1", "project_id": "prj_1", "url": "https://a.example", "types": ["*"],
        "description": "", "active": True, "generation": 1, "created_at": "2026-11-29T12:00:00Z",
    }  # fmt: skip
    replayed = httpx.Response(201, json={**hook, "secret": ""})
    shown = httpx.Response(200, json={**hook, "generation": 3, "secret": "whsec_x"})
    script = Script([replayed, replayed, shown])
    assert script.client().webhooks.create("https://a.example").secret == "whsec_x"
    paths = [request.url.path for request in script.requests]
    assert paths == ["/v1/webhooks", *["/v1/webhooks/whk_1/rotate"] * 2]
    assert len({request.headers["Idempotency-Key"] for request in script.requests}) == 3
