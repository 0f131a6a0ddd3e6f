"""Checkpoints are kept, expire, are exported and deleted; ended jobs are deleted."""

import asyncio
import hashlib
import io
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from infra.names import CLEAN_JOB, EXPORT_CHECKPOINT
from scheduler.watch import ChoreWatch
from stores import asset_tables
from stores import tables as t
from stores.system import expiry
from stores.unit_of_work import Database
from tests.integration.api.chores import do_chores
from tests.integration.api.world import Tenant, World

MODEL = ("config.json", "vocab.json", "chat.json", "model.safetensors")


def finished(tenant: Tenant) -> dict[str, Any]:
    """A job none of whose attempts holds anything."""
    job = tenant.ended()
    now = datetime.now(UTC)
    tenant.world.change(t.job, job["id"], ended_at=now)
    tenant.world.change(t.attempt, job["attempt_id"], ended_at=now)
    return job


def whole(tenant: Tenant, job: Mapping[str, Any], **values: Any) -> str:
    """A checkpoint with a model's files and its optimizer's."""
    world, checkpoint = tenant.world, tenant.checkpoint(job)
    files = []
    for name in (*MODEL, "optimizer.safetensors"):
        uri, sha = world.store(f"jobs/{job['id']}/{checkpoint}/{name}", name.encode())
        files.append({"name": name, "uri": uri, "sha": sha, "size": len(name)})
    world.change(t.checkpoint, checkpoint, files=files, **values)
    return checkpoint


def passed(world: World) -> None:
    """What the leader does every few seconds, and the chores that it asks for."""

    async def look(connection: Any) -> None:
        await expiry.expire_due(connection)
        for job, project in await expiry.jobs_to_clean(connection):
            await expiry.ask_to_clean(connection, world.ids.new("op"), job, project)

    world.run(look)
    do_chores(world, CLEAN_JOB)


def settled(world: World) -> None:
    """What the leader does for attempts that have ended."""

    async def once() -> None:
        database = Database(world.settings.database_url, 2)
        try:
            await ChoreWatch(database, Celery("unused"), 1).settle()
        finally:
            await database.close()

    asyncio.run(once())


def states(world: World) -> dict[str, str]:
    return {row.id: row.state for row in world.rows(t.checkpoint)}


def objects(world: World) -> list[str]:
    folder = world.settings.home / "objects" / "jobs"
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_checkpoints_of_the_whole_project_are_listed_by_state_and_keep(tenant: Tenant) -> None:
    first, second = tenant.checkpoint(finished(tenant)), tenant.checkpoint(finished(tenant))
    with tenant.http() as http:
        http.patch(f"/v1/checkpoints/{second}", json={"keep": True}).raise_for_status()

        def ids(**params: Any) -> list[str]:
            answer = http.get("/v1/checkpoints", params=params)
            assert answer.status_code == 200, answer.text
            return [one["id"] for one in answer.json()["data"]]

        assert ids() == [first, second]
        assert ids(keep=True) == [second]
        assert ids(state="expired") == []
        assert ids(limit=1, order="desc") == [second]
        refused = http.get("/v1/checkpoints", params={"state": "gone"})
    assert refused.status_code == 422
    assert "ready" in refused.json()["errors"][0]["message"]


def test_a_change_needs_the_state_that_was_read(tenant: Tenant) -> None:
    path = f"/v1/checkpoints/{tenant.checkpoint(finished(tenant))}"
    with tenant.http() as http:
        etag = http.get(path).headers["ETag"]
        kept = http.patch(path, json={"keep": True, "ttl_days": 3}, headers={"If-Match": etag})
        late = http.patch(path, json={"keep": False}, headers={"If-Match": etag})
        again = http.patch(path, json={"ttl_days": None})
        null = http.patch(path, json={"keep": None})
        unknown = http.patch(path, json={"name": "x"})
    assert (kept.status_code, kept.json()["keep"], kept.json()["ttl_days"]) == (200, True, 3)
    expires = datetime.fromisoformat(kept.json()["expires_at"])
    created = datetime.fromisoformat(kept.json()["created_at"])
    assert expires - created == timedelta(days=3)
    assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")
    assert (again.json()["keep"], again.json()["expires_at"]) == (True, None)
    assert (null.status_code, null.json()["errors"][0]["pointer"]) == (422, "/keep")
    assert unknown.status_code == 422


def test_a_checkpoint_past_its_age_expires_unless_it_is_kept_or_used(
    world: World, tenant: Tenant
) -> None:
    past = {"ttl_days": 1, "expires_at": datetime.now(UTC) - timedelta(hours=1)}
    job, other = finished(tenant), finished(tenant)
    old, kept, used = (whole(tenant, job, **past) for _ in range(3))
    young = whole(tenant, job, ttl_days=1, expires_at=datetime.now(UTC) + timedelta(hours=1))
    world.change(t.checkpoint, kept, keep=True)
    world.change(t.attempt, other["attempt_id"], ended_at=None, from_checkpoint_id=used)
    passed(world)
    assert states(world) == {old: "expired", kept: "ready", used: "ready", young: "ready"}
    assert objects(world).count("model.safetensors") == 3
    assert {row.type for row in world.rows(t.job_event)} >= {"checkpoint.expired"}
    passed(world)
    assert len([row for row in world.rows(t.operation) if row.kind == CLEAN_JOB]) == 1


def test_a_running_job_keeps_the_two_that_it_may_go_on_from(world: World, tenant: Tenant) -> None:
    job = tenant.job()
    past = {"ttl_days": 1, "expires_at": datetime.now(UTC) - timedelta(hours=1)}
    made = [tenant.checkpoint(job, step=step) for step in (1, 2, 3)]
    for checkpoint in made:
        world.change(t.checkpoint, checkpoint, **past)
    passed(world)
    assert [states(world)[one] for one in made] == ["expired", "ready", "ready"]


def test_an_ended_attempt_keeps_the_last_and_the_best_and_what_is_kept_or_used(
    world: World, tenant: Tenant
) -> None:
    keeps = {"keep_last": 2, "keep_best": 1}
    job, other = tenant.ended(checkpoints=keeps), finished(tenant)
    steps = (10, 20, 30, 40, 50, 60, 70)
    made = {step: whole(tenant, job, step=step) for step in steps}
    filled = {"job_id": job["id"], "attempt_id": job["attempt_id"]}
    for step, selected in ((30, 0.9), (40, 0.9), (70, 0.1)):
        world.add(
            t.evaluation, attempt_id=job["attempt_id"], step=step, tasks=1, scored=1, unscorable=0,
            score=selected, selected=selected, seconds=1.0,
        )  # fmt: skip
    # That of step 50 was given up when the job ended, and has no result.
    for ordinal, step in enumerate((30, 40, 50, 70)):
        world.add(
            t.rollout_group, id=f"grp_{ordinal}", ordinal=ordinal, purpose="evaluation",
            organization_id=tenant.organization_id, task_id="t", environment_version_id="ev",
            policy_version=step, size=1, open=0, disposition=f"evaluated({step})", **filled,
        )  # fmt: skip
    world.change(t.checkpoint, made[10], keep=True)
    world.change(t.attempt, other["attempt_id"], ended_at=None, from_checkpoint_id=made[20])
    settled(world)
    assert set(states(world).values()) == {"ready"}, "its attempt has not ended"

    world.change(t.attempt, job["attempt_id"], ended_at=datetime.now(UTC))
    settled(world)
    passed(world)
    gone = {made[step] for step in (30, 50)}
    assert {one for one, state in states(world).items() if state == "expired"} == gone
    assert objects(world).count("model.safetensors") == len(steps) - len(gone)
    said = [row.body for row in world.rows(t.job_event) if row.type == "checkpoint.expired"]
    assert {(one["checkpoint_id"], one["cause"]) for one in said} == {
        (one, "keep_last") for one in gone
    }
    settled(world)
    assert len([row for row in world.rows(t.job_event) if row.type == "checkpoint.expired"]) == 2


def test_a_deleted_checkpoint_is_gone_and_deleting_it_again_is_fine(
    world: World, tenant: Tenant
) -> None:
    checkpoint = whole(tenant, finished(tenant), keep=True)
    path = f"/v1/checkpoints/{checkpoint}"
    with tenant.http() as http:
        assert [http.delete(path).status_code for _ in range(2)] == [204, 204]
        assert http.get(path).json()["state"] == "expired"
        assert http.patch(path, json={"keep": True}).json()["code"] == "checkpoint_not_ready"
        assert http.get(f"{path}/files/config.json").json()["code"] == "checkpoint_not_ready"
        assert http.delete("/v1/checkpoints/ckpt_none").status_code == 404
    passed(world)
    assert "model.safetensors" not in objects(world)


def test_a_checkpoint_that_something_needs_is_not_deleted(world: World, tenant: Tenant) -> None:
    job, other = finished(tenant), finished(tenant)
    checkpoint = whole(tenant, job)

    def refusal() -> str:
        with tenant.http() as http:
            answer = http.delete(f"/v1/checkpoints/{checkpoint}")
        assert (answer.status_code, answer.json()["code"]) == (409, "in_use"), answer.text
        return str(answer.json()["detail"])

    world.change(t.attempt, other["attempt_id"], ended_at=None, from_checkpoint_id=checkpoint)
    assert "attempt" in refusal()
    world.change(t.attempt, other["attempt_id"], ended_at=datetime.now(UTC))
    world.change(t.job, other["id"], state="paused", spec={"model": {"base": checkpoint}})
    assert "base model" in refusal()
    world.change(t.job, other["id"], state="failed")
    world.add(
        asset_tables.model, id="mdl_1", organization_id=tenant.organization_id,
        project_id=tenant.project_id, name="m", ref="upload:mdl_1", state="validating",
        source={"type": "checkpoint", "checkpoint": checkpoint},
    )  # fmt: skip
    assert "model is being made" in refusal()
    world.change(asset_tables.model, "mdl_1", state="ready")
    world.change(t.attempt, job["attempt_id"], ended_at=None)
    assert "go on from it" in refusal()
    world.change(t.attempt, job["attempt_id"], ended_at=datetime.now(UTC))
    with tenant.http() as http:
        assert http.delete(f"/v1/checkpoints/{checkpoint}").status_code == 204


def test_an_export_is_one_file_with_a_sum_and_parts(world: World, tenant: Tenant) -> None:
    checkpoint = whole(tenant, finished(tenant))
    path = f"/v1/checkpoints/{checkpoint}/export"
    with tenant.http() as http:
        early = http.get(path)
        started = [http.post(path, params={"wait": 0}).json() for _ in range(2)]
        assert do_chores(world, EXPORT_CHECKPOINT) == 2
        done = [http.get(f"/v1/operations/{one['id']}").json() for one in started]
        whole_file, part = http.get(path), http.get(path, headers={"Range": "bytes=10-19"})
        shown = http.get(f"/v1/checkpoints/{checkpoint}")
    assert (early.status_code, early.json()["code"]) == (409, "not_exported")
    assert done[0]["result"] == done[1]["result"]
    assert done[0]["result"]["sha256"] == hashlib.sha256(whole_file.content).hexdigest()
    assert (part.status_code, part.content) == (206, whole_file.content[10:20])
    assert shown.json()["export"] == done[0]["result"]
    assert "uri" not in shown.text
    assert f'filename="{done[0]["result"]["name"]}"' in whole_file.headers["Content-Disposition"]
    with tarfile.open(fileobj=io.BytesIO(whole_file.content)) as archive:
        assert archive.getnames() == [f"{checkpoint}/{name}" for name in MODEL]


def test_an_export_says_what_it_cannot_do(world: World, tenant: Tenant) -> None:
    checkpoint = tenant.checkpoint(finished(tenant))
    path = f"/v1/checkpoints/{checkpoint}/export"
    with tenant.http() as http:
        peft = http.post(path, json={"format": "peft"})
        other = http.post(path, json={"format": "gguf"})
        lacking = http.post(path, params={"wait": 0}).json()
        do_chores(world, EXPORT_CHECKPOINT)
        failed = http.get(f"/v1/operations/{lacking['id']}").json()
    (finding,) = peft.json()["errors"]
    assert (peft.status_code, finding["pointer"], finding["code"]) == (
        422, "/format", "no_adapter",
    )  # fmt: skip
    assert other.status_code == 422
    assert failed["error"]["code"] == "checkpoint_unreadable"
    assert "config.json" in failed["error"]["detail"]


@pytest.mark.parametrize("state", ["queued", "running", "paused"])
def test_a_job_that_has_not_ended_is_not_deleted(world: World, tenant: Tenant, state: str) -> None:
    job = tenant.job()
    world.change(t.job, job["id"], state=state)
    with tenant.http() as http:
        answer = http.delete(f"/v1/jobs/{job['id']}")
        assert (answer.status_code, answer.json()["code"]) == (409, "job_active")
        assert http.get(f"/v1/jobs/{job['id']}").status_code == 200


def test_a_job_whose_attempt_still_holds_something_is_not_deleted(tenant: Tenant) -> None:
    with tenant.http() as http:
        assert http.delete(f"/v1/jobs/{tenant.ended()['id']}").json()["code"] == "job_active"


def test_a_deleted_job_is_nowhere_and_only_kept_and_needed_checkpoints_stay(
    world: World, tenant: Tenant
) -> None:
    job, other = finished(tenant), finished(tenant)
    plain, kept, used = (whole(tenant, job) for _ in range(3))
    world.change(t.checkpoint, kept, keep=True)
    world.change(t.attempt, other["attempt_id"], ended_at=None, from_checkpoint_id=used)
    world.store(f"jobs/{job['id']}/trajectories/ro_1/t1-h1.msgpack", b"x")
    world.store(f"outputs/{job['attempt_id']}/out_1.jsonl", b"unnamed")
    path = f"/v1/jobs/{job['id']}"
    with tenant.http() as http:
        assert [http.delete(path).status_code for _ in range(2)] == [204, 204]
        for route in (path, f"{path}/events", f"{path}/rollouts", f"{path}/bill", f"{path}/logs"):
            assert http.get(route).status_code == 404, route
        assert http.post(f"{path}/restart").status_code == 404
        assert [one["id"] for one in http.get("/v1/jobs").json()["data"]] == [other["id"]]
        left = [one["id"] for one in http.get("/v1/checkpoints").json()["data"]]
        assert http.get(f"/v1/checkpoints/{kept}/files/config.json").content == b"config.json"
        assert http.delete("/v1/jobs/job_none").status_code == 404
    assert left == [kept, used]
    passed(world)
    assert states(world) == {plain: "expired", kept: "ready", used: "ready"}
    assert objects(world).count("model.safetensors") == 2
    assert "t1-h1.msgpack" not in objects(world)
    assert not list((world.settings.home / "objects" / "outputs").rglob("*.jsonl"))
    (row,) = [row for row in world.rows(t.job) if row.id == job["id"]]
    assert row.cleaned_at is not None


def test_a_viewer_changes_and_deletes_nothing(world: World, tenant: Tenant) -> None:
    job = finished(tenant)
    checkpoint = tenant.checkpoint(job)
    with world.http() as admin:
        asked = {"name": "v", "project_id": tenant.project_id, "role": "viewer"}
        key = admin.post("/v1/api-keys", json=asked).json()["secret"]
    with world.http(key) as http:
        for method, path, body in (
            ("DELETE", f"/v1/jobs/{job['id']}", None),
            ("DELETE", f"/v1/checkpoints/{checkpoint}", None),
            ("PATCH", f"/v1/checkpoints/{checkpoint}", {"keep": True}),
            ("POST", f"/v1/checkpoints/{checkpoint}/export", {}),
        ):
            assert http.request(method, path, json=body).status_code == 403, path
