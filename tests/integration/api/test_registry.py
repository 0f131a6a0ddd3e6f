"""The registry of environments: drafts, publication, yanks, validation again, deletion."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stores import tables as t
from tests.integration.api.world import CALC, SPEC, Tenant, World
from venusrl._archive import pack
from venusrl.client import Conflict, Invalid, NotFound


def verb(http: httpx.Client, path: str, body: Any = None) -> httpx.Response:
    """POST a verb of a version of calc."""
    return http.post(f"/v1/environments/calc/versions/{path}", json=body)


def submit(http: httpx.Client, ref: str) -> tuple[str, str]:
    """Ref of the job that was made, or the code and the text of the finding at the ref."""
    answer = http.post("/v1/jobs", json={**SPEC, "environments": [{"ref": ref}]})
    if answer.status_code == 201:
        return "", answer.json()["spec"]["environments"][0]["ref"]
    (one,) = answer.json()["errors"]
    assert one["pointer"] == "/environments/0/ref"
    return one["code"], f"{one['message']} {one['hint']}"


@pytest.fixture
def uploads(tmp_path: Path, tenant: Tenant) -> Callable[..., dict[str, Any]]:
    """Uploads calc with another content each time; its validation has passed."""
    made: list[str] = []

    def upload(draft: bool = False, passed: bool = True) -> dict[str, Any]:
        folder = tmp_path / f"v{len(made)}"
        shutil.copytree(CALC, folder)
        (folder / "notes.txt").write_text(folder.name)
        with tenant.http() as http:
            answer = http.post(
                "/v1/environments/calc/versions",
                content=pack(folder),
                params={"draft": draft} if draft else {},
            )
            assert answer.status_code == 201, answer.text
            made.append(answer.json()["id"])
            tenant.validated(made[-1], passed)
            version: dict[str, Any] = http.get(
                f"/v1/environments/calc/versions/{answer.json()['version']}"
            ).json()
        return version

    return upload


Uploads = Callable[..., dict[str, Any]]


def test_a_draft_is_the_newest_only_once_it_is_published(tenant: Tenant, uploads: Uploads) -> None:
    uploads()
    draft = uploads(draft=True)
    assert (draft["state"], draft["draft"]) == ("ready", True)
    with tenant.http() as http:
        assert submit(http, "calc") == ("", "calc@1")
        assert submit(http, "calc@2") == ("", "calc@2")
        published = verb(http, "2/publish")
        assert (published.status_code, published.json()["draft"]) == (200, False)
        assert submit(http, "calc") == ("", "calc@2")


def test_a_project_with_drafts_alone_is_told_so(tenant: Tenant, uploads: Uploads) -> None:
    uploads(draft=True)
    with tenant.http() as http:
        code, said = submit(http, "calc")
    assert code == "version_not_ready"
    assert "draft" in said


def test_a_yanked_version_is_refused_with_its_reason_until_it_is_published(
    tenant: Tenant, uploads: Uploads
) -> None:
    uploads()
    uploads()
    with tenant.http() as http:
        yanked = verb(http, "2/yank", {"reason": "the reward can be gamed"}).json()
        assert (yanked["state"], yanked["yank_reason"]) == ("yanked", "the reward can be gamed")
        assert submit(http, "calc") == ("", "calc@1")
        code, said = submit(http, "calc@2")
        assert code == "version_yanked"
        assert "gamed" in said
        again = verb(http, "2/yank", {}).json()
        assert again["yanked_at"] == yanked["yanked_at"]
        verb(http, "1/yank", {})
        assert submit(http, "calc")[0] == "version_yanked"
        back = verb(http, "2/publish").json()
        assert (back["state"], back["yanked_at"], back["yank_reason"]) == ("ready", None, None)
        assert submit(http, "calc@2") == ("", "calc@2")


def test_jobs_of_a_yanked_version_go_on_and_restart_and_do_not_branch(
    world: World, tenant: Tenant, uploads: Uploads
) -> None:
    uploads()
    job = tenant.ended()
    checkpoint = tenant.checkpoint(job)
    with tenant.http() as http:
        verb(http, "1/yank", {"reason": "wrong answers"})
        changed = http.patch(f"/v1/jobs/{job['id']}", json={"max_steps": 99})
        assert changed.status_code == 200, changed.text
        branch = http.post(f"/v1/jobs/{job['id']}/branch", json={"checkpoint": checkpoint})
        assert branch.json()["errors"][0]["code"] == "version_yanked"
        restarted = http.post(f"/v1/jobs/{job['id']}/restart", json={})
        assert restarted.status_code == 202, restarted.text


def test_a_failed_version_is_not_published(tenant: Tenant, uploads: Uploads) -> None:
    uploads(passed=False)
    with tenant.http() as http:
        answer = verb(http, "1/publish")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_a_validation_again_replaces_the_outcome_and_is_started_once(
    world: World, tenant: Tenant, uploads: Uploads
) -> None:
    uploads(passed=False)
    uploads()
    for row in world.rows(t.operation):
        world.change(t.operation, row.id, state="done", ended_at=row.created_at)
    with tenant.http() as http:
        first = verb(http, "1/validate")
        assert (first.status_code, first.json()["kind"]) == (202, "validate_environment")
        assert verb(http, "1/validate").json()["id"] == first.json()["id"]
        assert http.get("/v1/environments/calc/versions/1").json()["state"] == "building"
        verb(http, "2/validate")
        assert http.get("/v1/environments/calc/versions/2").json()["state"] == "ready"
        assert submit(http, "calc") == ("", "calc@2")
    started = [row.request for row in world.rows(t.operation) if row.state == "pending"]
    assert [one.get("again") for one in started if "job_id" not in one] == [True, True]


def test_a_test_run_of_a_checkpoint_needs_a_ready_one(tenant: Tenant, uploads: Uploads) -> None:
    uploads()
    job = tenant.ended()
    ready, writing = tenant.checkpoint(job), tenant.checkpoint(job, step=6, state="writing")
    with tenant.http() as http:
        started = verb(http, "1/test-runs", {"checkpoint": ready, "config": {"a": 1}})
        assert (started.status_code, started.json()["kind"]) == (202, "test_environment")
        assert verb(http, "1/test-runs", {"checkpoint": writing}).status_code == 409
        assert verb(http, "1/test-runs", {"checkpoint": "ckpt_none"}).status_code == 404
        assert verb(http, "1/test-runs", {"tasks": 65}).status_code == 422
        bad = verb(http, "1/test-runs", {"config": {"a": "\x00"}})
        assert bad.json()["errors"][0]["pointer"] == "/config/a"


def test_an_environment_is_deleted_once_no_live_job_plays_it(
    world: World, tenant: Tenant, uploads: Uploads
) -> None:
    uploads()
    job = tenant.job()
    with tenant.http() as http:
        refused = http.delete("/v1/environments/calc")
        assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
        assert job["id"] in refused.json()["detail"]
        world.change(
            t.job, job["id"], state="succeeded", tasks={"train": {}}, observed_generation=1
        )
        assert http.delete("/v1/environments/calc").status_code == 204
        for path in ("calc", "calc/versions", "calc/versions/1"):
            assert http.get(f"/v1/environments/{path}").status_code == 404
        assert http.get("/v1/environments").json()["data"] == []
        assert http.delete("/v1/environments/calc").status_code == 404
        restarted = http.post(f"/v1/jobs/{job['id']}/restart", json={})
        assert restarted.status_code == 202, restarted.text
    (stored,) = world.rows(t.environment_version)
    assert stored.id == world.rows(t.job)[0].environment_version_id
    assert uploads()["version"] == 2, "calc@1 goes on to mean what the old job was made of"


def test_an_environment_that_a_job_only_evaluates_on_is_in_use(
    tenant: Tenant, uploads: Uploads
) -> None:
    uploads()
    tenant.environment("other")
    evaluation = {"environments": [{"ref": "calc", "split": "test"}]}
    job = tenant.job(environments=[{"ref": "other"}], evaluation=evaluation)
    with tenant.http() as http:
        refused = http.delete("/v1/environments/calc")
        assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
        assert job["id"] in refused.json()["detail"]


def test_verbs_of_others_environments_are_not_found(
    world: World, tenant: Tenant, uploads: Uploads
) -> None:
    uploads()
    with world.tenant("other").http() as http:
        for path, body in (("yank", {}), ("publish", None), ("validate", None), ("test-runs", {})):
            assert verb(http, f"1/{path}", body).status_code == 404, path
        assert http.delete("/v1/environments/calc").status_code == 404
    with world.http(world.tenant("looker", role="viewer").key) as http:
        assert verb(http, "1/yank", {}).status_code == 403
        assert http.delete("/v1/environments/calc").status_code == 403


def test_a_verb_with_a_key_acts_once(tenant: Tenant, uploads: Uploads) -> None:
    uploads()
    with tenant.http(**{"Idempotency-Key": "k1"}) as http:
        first = verb(http, "1/yank", {"reason": "a"})
        again = verb(http, "1/yank", {"reason": "a"})
        other = verb(http, "1/yank", {"reason": "b"})
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json() == first.json()
    assert other.json()["code"] == "idempotency_conflict"


def test_the_client_has_every_verb(tenant: Tenant, uploads: Uploads) -> None:
    uploads()
    with tenant.sdk() as client:
        assert client.environments.yank("calc", 1, "why").yank_reason == "why"
        with pytest.raises(Invalid, match="yanked: why"):
            client.jobs.create({**SPEC, "environments": [{"ref": "calc@1"}]})
        assert client.environments.publish("calc", 1).state == "ready"
        assert client.environments.validate("calc", 1, wait_s=None).state == "ready"
        job = client.jobs.create(dict(SPEC))
        with pytest.raises(Conflict):
            client.environments.delete("calc")
        client.jobs.cancel(job.id)
        client.environments.delete("calc")
        with pytest.raises(NotFound):
            client.environments.get("calc")
