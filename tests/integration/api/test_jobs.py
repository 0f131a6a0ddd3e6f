"""Jobs: validation, creation, reading, verbs."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stores import tables as t
from tests.integration.api.world import SPEC, Tenant, World

MALFORMED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no name": ({"name": ""}, "/name", "string_too_short"),
    "control character": ({"name": "a\x07"}, "/name", "string_pattern_mismatch"),
    "nul": ({"name": "a\x00"}, "/name", "bad_text"),
    "unknown field": ({"nmae": 1}, "/nmae", "extra_forbidden"),
    "later field": ({"resources": {"placement": "colocated"}},
                    "/resources/placement", "not_available"),
    "lora": ({"model": {"base": "tiny-calc", "training": {"type": "lora"}}},
             "/model/training/type", "not_available"),
    "unknown model": ({"model": {"base": "tiny-clac"}}, "/model/base", "unknown_model"),
    "long context": ({"model": {"base": "tiny-calc", "context_tokens": 4096}},
                     "/model/context_tokens", "context_too_long"),
    "unknown environment": ({"environments": [{"ref": "clac"}]},
                            "/environments/0/ref", "unknown_environment"),
    "unknown version": ({"environments": [{"ref": "calc@9"}]},
                        "/environments/0/ref", "version_not_ready"),
    "no version number": ({"environments": [{"ref": "calc@x"}]},
                          "/environments/0/ref", "string_pattern_mismatch"),
    "two environments": ({"environments": [{"ref": "calc"}, {"ref": "calc"}]},
                         "/environments/1/name", "repeated_name"),
    "no environment": ({"environments": []}, "/environments", "too_short"),
    "unknown split": ({"environments": [{"ref": "calc", "split": "dev"}]},
                      "/environments/0/split", "unknown_split"),
    "infinite config": ({"environments": [{"ref": "calc", "config": {"a": [1, 1e400]}}]},
                        "/environments/0/config/a/1", "not_finite"),
    "group of none": ({"rollout": {"group_size": 0}}, "/rollout/group_size", "greater_than_equal"),
    "group beyond pool": ({"rollout": {"group_size": 512}}, "/rollout/group_size", "never_fits"),
    "engines beyond pool": ({"resources": {"rollout_gpus": {"min": 64}}},
                            "/resources/rollout_gpus/min", "never_fits"),
    "max below min": ({"resources": {"rollout_gpus": {"min": 2, "max": 1}}},
                      "/resources/rollout_gpus/max", "below_min"),
    "no correction": ({"algorithm": {"correction": {"type": "none"}}},
                      "/algorithm/correction/type", "correction_needed"),
    "least above size": ({"rollout": {"group_size": 4, "on_failure": {"min_group_size": 5}}},
                         "/rollout/on_failure/min_group_size", "above_group_size"),
    "negative rate": ({"optimizer": {"lr": -1}}, "/optimizer/lr", "greater_than"),
    "text for a number": ({"stop": {"max_steps": "many"}}, "/stop/max_steps", "int_type"),
    "bool for a number": ({"seed": True}, "/seed", "int_type"),
    "unknown strategy": ({"scheduling": {"strategy": "best"}},
                         "/scheduling/strategy", "literal_error"),
    "cold sampling": ({"rollout": {"sampling": {"temperature": 0}}},
                      "/rollout/sampling/temperature", "greater_than_equal"),
    "empty stop string": ({"rollout": {"sampling": {"stop": [""]}}},
                          "/rollout/sampling/stop/0", "string_too_short"),
}  # fmt: skip


@pytest.fixture
def ready(tenant: Tenant) -> Tenant:
    """A tenant with the environment calc."""
    tenant.environment()
    return tenant


def test_every_malformed_spec_has_a_pointer_and_creates_nothing(
    world: World, ready: Tenant
) -> None:
    with ready.http(**{"Content-Type": "application/json"}) as http:
        for kind, (changes, pointer, code) in MALFORMED.items():
            content = json.dumps({**SPEC, **changes})
            refused = http.post("/v1/jobs", content=content)
            assert refused.status_code == 422, (kind, refused.text)
            found = {one["pointer"]: one["code"] for one in refused.json()["errors"]}
            assert found.get(pointer) == code, (kind, refused.text)
            looked = http.post("/v1/jobs/validate", content=content).json()
            assert not looked["valid"], kind
            assert looked["spec"] is None, kind
            assert {one["pointer"] for one in looked["findings"]} >= set(found), kind
    assert world.rows(t.job) == []


def test_near_names_of_the_own_project_are_in_the_hints(ready: Tenant) -> None:
    spec = {"name": "j", "model": {"base": "tiny-clac"}, "environments": [{"ref": "clac"}]}
    with ready.http() as http:
        errors = http.post("/v1/jobs", json=spec).json()["errors"]
    hints = {one["pointer"]: one["hint"] for one in errors}
    assert "tiny-calc" in hints["/model/base"]
    assert "calc" in hints["/environments/0/ref"]


def test_a_field_of_a_later_version_says_so(ready: Tenant) -> None:
    with ready.http() as http:
        spec = {**SPEC, "trackers": [{"type": "wandb"}]}
        errors = http.post("/v1/jobs", json=spec).json()["errors"]
    assert (errors[0]["code"], bool(errors[0]["hint"])) == ("not_available", True)


def test_validation_resolves_every_auto_with_a_reason(ready: Tenant) -> None:
    with ready.http() as http:
        looked = http.post("/v1/jobs/validate", json=SPEC).json()
    assert looked["valid"]
    assert looked["findings"] == []
    assert "auto" not in str(looked["spec"])
    resolved = {one["pointer"]: one for one in looked["resolved"]}
    assert resolved["/environments/0/ref"]["value"] == "calc@1"
    assert set(resolved) == {
        "/environments/0/max_turns",
        "/environments/0/ref",
        "/environments/0/wall_s",
        "/algorithm/loss/clip_high",
        "/model/context_tokens",
        "/optimizer/lr",
        "/resources/placement",
        "/resources/rollout_gpus/max",
        "/resources/tensor_parallel",
        "/resources/trainer_gpus",
        "/rollout/on_failure/min_group_size",
        "/scheduling/async_ratio",
        "/scheduling/order",
        "/stop/max_steps",
    }
    assert all(one["reason"] for one in resolved.values())


def test_a_group_of_one_is_flagged_but_allowed(ready: Tenant) -> None:
    with ready.http() as http:
        spec = {**SPEC, "rollout": {"group_size": 1}}
        looked = http.post("/v1/jobs/validate", json=spec).json()
        created = http.post("/v1/jobs", json=spec)
    assert looked["valid"]
    assert [(one["code"], one["severity"]) for one in looked["findings"]] == [
        ("no_signal", "warning")
    ]
    assert created.status_code == 201


def test_a_job_keeps_what_was_submitted_and_what_it_means(world: World, ready: Tenant) -> None:
    job = ready.job(labels={"team": "a"})
    (row,) = world.rows(t.job)
    assert row.submitted_spec == {**SPEC, "labels": {"team": "a"}}
    assert row.spec == job["spec"]
    assert row.spec["rollout"]["group_size"] == 8
    assert (row.state, row.desired, row.generation) == ("validating", "run", 1)
    (attempt,) = world.rows(t.attempt)
    assert (attempt.id, attempt.number, attempt.base_step) == (row.attempt_id, 1, 0)
    (event,) = world.rows(t.job_event)
    assert (event.seq, event.type) == (1, "job.created")
    (operation,) = world.rows(t.operation)
    assert (operation.kind, operation.request) == ("prepare_job", {"job_id": row.id})


def test_jobs_are_never_refused_for_capacity(world: World, ready: Tenant) -> None:
    with ready.http() as http:
        statuses = {http.post("/v1/jobs", json=SPEC).status_code for _ in range(30)}
    assert statuses == {201}
    assert len(world.rows(t.job)) == 30


def test_pages_follow_each_other_without_gap_or_repetition(world: World, ready: Tenant) -> None:
    made = [ready.job(name=f"job {n}")["id"] for n in range(5)]
    with ready.http() as http:
        seen: list[str] = []
        after = None
        for expected in (2, 2, 1):
            params = {"limit": 2} | ({"after": after} if after else {})
            page = http.get("/v1/jobs", params=params).json()
            assert len(page["data"]) == expected
            seen += [one["id"] for one in page["data"]]
            after = page["next"]
        assert (page["has_more"], page["next"]) == (False, None)
        newest = http.get("/v1/jobs", params={"order": "desc", "limit": 1}).json()["data"]
    assert seen == made
    assert newest[0]["id"] == made[-1]


def test_jobs_are_filtered_by_state(ready: Tenant) -> None:
    ended, open_ = ready.ended(), ready.job()
    with ready.http() as http:
        found = http.get("/v1/jobs", params={"state": "succeeded"}).json()["data"]
    assert [one["id"] for one in found] == [ended["id"]]
    assert open_["state"] == "validating"


def test_a_patch_with_an_old_etag_changes_nothing(ready: Tenant) -> None:
    job = ready.job()
    with ready.http() as http:
        etag = http.get(f"/v1/jobs/{job['id']}").headers["ETag"]
        first = http.patch(
            f"/v1/jobs/{job['id']}", json={"name": "first"}, headers={"If-Match": etag}
        )
        second = http.patch(
            f"/v1/jobs/{job['id']}", json={"name": "second"}, headers={"If-Match": etag}
        )
        unknown = http.patch(f"/v1/jobs/{job['id']}", json={"spec": {}})
        now = http.get(f"/v1/jobs/{job['id']}")
    assert first.status_code == 200
    assert first.headers["ETag"] == now.headers["ETag"] != etag
    assert (second.status_code, second.json()["code"]) == (412, "precondition_failed")
    assert unknown.json()["errors"][0]["pointer"] == "/spec"
    assert now.json()["name"] == "first"


def test_asking_twice_for_the_same_raises_the_generation_once(world: World, ready: Tenant) -> None:
    job = ready.job()
    world.change(t.job, job["id"], state="running")
    path = f"/v1/jobs/{job['id']}"
    with ready.http() as http:
        generations = [
            http.post(f"{path}/{verb}").json()["generation"]
            for verb in ("pause", "pause", "resume", "resume", "cancel", "cancel")
        ]
        late = http.post(f"{path}/resume")
    assert generations == [2, 2, 3, 3, 4, 4]
    assert (late.status_code, late.json()["code"]) == (409, "job_cancelling")


@pytest.mark.parametrize("state", ["pausing", "paused"])
def test_a_job_that_the_platform_paused_is_resumed_by_one_call(
    world: World, ready: Tenant, state: str
) -> None:
    """Its user never wished for the pause: what is wanted is already `run`."""
    job = ready.job()
    world.change(t.job, job["id"], state=state, observed_generation=1)
    with ready.http() as http:
        answers = [http.post(f"/v1/jobs/{job['id']}/resume").json() for _ in range(2)]
    assert [one["generation"] for one in answers] == [2, 2]


def test_restarts_at_once_make_one_attempt_and_say_why_the_others_did_not(ready: Tenant) -> None:
    job = ready.ended("cancelled")
    with ready.http() as http, ThreadPoolExecutor(4) as pool:
        path = f"/v1/jobs/{job['id']}/restart"
        answers = list(pool.map(lambda _: http.post(path, json={}), range(4)))
    assert sorted(one.status_code for one in answers) == [202, 409, 409, 409]
    assert {one.json()["code"] for one in answers if one.status_code == 409} == {"job_active"}


def test_an_ended_job_takes_no_verb_but_restart(ready: Tenant) -> None:
    job = ready.ended()
    with ready.http() as http:
        for verb in ("pause", "resume", "cancel"):
            refused = http.post(f"/v1/jobs/{job['id']}/{verb}")
            assert (refused.status_code, refused.json()["code"]) == (409, "job_ended")


def test_a_job_cancelled_while_it_is_validated_has_ended(ready: Tenant) -> None:
    job = ready.job()
    with ready.http() as http:
        answer = http.post(f"/v1/jobs/{job['id']}/cancel").json()
    assert (answer["state"], answer["desired"]) == ("cancelled", "cancel")
    assert answer["ended_at"]


def test_a_restart_goes_on_from_the_checkpoint(world: World, ready: Tenant) -> None:
    job = ready.ended("cancelled")
    older, newer = ready.checkpoint(job, step=3), ready.checkpoint(job, step=5)
    path = f"/v1/jobs/{job['id']}/restart"
    with ready.http() as http:
        answer = http.post(path, json={"checkpoint": older})
        assert answer.status_code == 202, answer.text
        first = answer.json()
        active = http.post(path)
        world.change(t.job, job["id"], state="failed")
        second = http.post(path).json()
    attempts = {row.number: row for row in world.rows(t.attempt)}
    assert (first["attempt"], first["state"], first["desired"]) == (2, "queued", "run")
    assert first["generation"] == 2
    assert (active.status_code, active.json()["code"]) == (409, "job_active")
    assert second["attempt"] == 3
    assert (attempts[2].from_checkpoint_id, attempts[2].base_step) == (older, 3)
    assert (attempts[2].next_ordinal, attempts[2].unconsumed) == (40, [38, 39])
    assert (attempts[3].from_checkpoint_id, attempts[3].base_step) == (newer, 5)


def test_a_restart_without_a_checkpoint_begins_anew(world: World, ready: Tenant) -> None:
    job = ready.ended("failed")
    with ready.http() as http:
        assert http.post(f"/v1/jobs/{job['id']}/restart").status_code == 202
    attempts = {row.number: row for row in world.rows(t.attempt)}
    assert (attempts[2].from_checkpoint_id, attempts[2].base_step) == (None, 0)


def test_a_job_that_never_began_is_not_restarted(world: World, ready: Tenant) -> None:
    job = ready.ended("failed")
    world.change(t.job, job["id"], tasks={})
    with ready.http() as http:
        answer = http.post(f"/v1/jobs/{job['id']}/restart")
    assert (answer.status_code, answer.json()["code"]) == (409, "job_never_started")


def test_a_restart_needs_a_whole_checkpoint_with_steps_left(ready: Tenant) -> None:
    job = ready.ended(stop={"max_steps": 5})
    writing = ready.checkpoint(job, state="writing")
    last = ready.checkpoint(job, step=5)
    path = f"/v1/jobs/{job['id']}/restart"
    with ready.http() as http:
        torn = http.post(path, json={"checkpoint": writing})
        done = http.post(path, json={"checkpoint": last})
        unknown = http.post(path, json={"checkpoint": "ckpt_0000000000"})
    assert (torn.status_code, torn.json()["code"]) == (409, "checkpoint_not_ready")
    assert (done.status_code, done.json()["code"]) == (409, "nothing_left")
    assert unknown.status_code == 404


def test_the_progress_of_an_ended_job_has_nothing_that_runs(world: World, ready: Tenant) -> None:
    job = ready.job()
    host = {"id": "h", "kind": "engine", "epoch": 1, "rollouts": 18, "figures": {"busy": 1.0}}
    said = {
        "state": "running", "step": 40, "max_steps": 40, "checkpoint_step": 40, "filling_step": 41,
        "groups": {"open": 4, "complete": 1, "assigned": 2, "per_batch": 8},
        "rollouts": {"running": 36, "waiting": 3}, "sandboxes": 36, "tokens_per_s": 812.5,
        "staleness": {"0": 2}, "evaluation": {"step": 40, "opened": 9, "unfinished": 1},
        "hosts": [host], "blocked": None,
    }  # fmt: skip
    world.change(t.job, job["id"], state="running", progress=said)
    path = f"/v1/jobs/{job['id']}/progress"
    with ready.http() as http:
        running = http.get(path).json()
        world.change(t.job, job["id"], state="cancelled")
        ended = http.get(path).json()
    assert (running["rollouts"], running["hosts"]) == ({"running": 36, "waiting": 3}, [host])
    assert (ended["state"], ended["step"], ended["max_steps"]) == ("cancelled", 40, 40)
    assert (ended["rollouts"], ended["hosts"]) == ({"running": 0, "waiting": 0}, [])
    assert ended["groups"] == {"open": 0, "complete": 0, "assigned": 0, "per_batch": 8}
    assert (ended["sandboxes"], ended["tokens_per_s"], ended["evaluation"]) == (0, 0.0, None)
    assert (ended["staleness"], ended["checkpoint_step"]) == ({}, 40)


def test_a_waiting_job_says_when_it_will_start_and_a_running_one_no_more(
    world: World, ready: Tenant
) -> None:
    job = ready.job()
    start, why = "2030-01-02T03:04:05+00:00", "no step of job_x has been measured yet"
    path = f"/v1/jobs/{job['id']}"
    found = []
    with ready.http() as http:
        for state, said in (
            ("queued", {"predicted_start": start, "predicted_start_reason": None}),
            ("queued", {"predicted_start": None, "predicted_start_reason": why}),
            ("running", {"predicted_start": start, "predicted_start_reason": None}),
        ):
            world.change(t.job, job["id"], state=state, progress=said)
            body = http.get(path).json()
            found.append((body["predicted_start"], body["predicted_start_reason"]))
    assert found == [("2030-01-02T03:04:05Z", None), (None, why), (None, None)]


def test_a_failed_job_says_why(ready: Tenant) -> None:
    job = ready.ended("failed")
    with ready.http() as http:
        failure = http.get(f"/v1/jobs/{job['id']}").json()["failure"]
        progress = http.get(f"/v1/jobs/{job['id']}/progress").json()
    assert (failure["code"], failure["component"]) == ("trainer_failed", "trainer")
    assert (progress["state"], progress["job_id"]) == ("failed", job["id"])
