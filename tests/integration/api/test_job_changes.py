"""Changing a job, resuming one that paused itself, branching from its checkpoints."""

from typing import Any

import pytest

from stores import tables as t
from tests.integration.api.world import SPEC, TASKS, Tenant, World
from venusrl.client import Conflict, Invalid


@pytest.fixture
def ready(tenant: Tenant) -> Tenant:
    """A tenant with the environment calc."""
    tenant.environment()
    return tenant


def row_of(world: World, job_id: str) -> Any:
    """A job's row."""
    return next(row for row in world.rows(t.job) if row.id == job_id)


def test_a_running_jobs_limits_change_and_the_coordinator_is_asked_to_look(
    world: World, ready: Tenant
) -> None:
    job = ready.job()
    world.change(t.job, job["id"], state="running", observed_generation=1)
    changes = {"max_steps": 7, "priority": "high", "budget": {"max_wall_hours": 2.0}}
    with ready.http() as http:
        path = f"/v1/jobs/{job['id']}"
        etag = http.get(path).headers["ETag"]
        answer = http.patch(path, json=changes, headers={"If-Match": etag})
        late = http.patch(path, json={"max_steps": 9}, headers={"If-Match": etag})
    assert answer.status_code == 200, answer.text
    spec = answer.json()["spec"]
    assert (spec["stop"]["max_steps"], spec["resources"]["priority"]) == (7, "high")
    assert spec["budget"]["max_wall_hours"] == 2.0
    row = row_of(world, job["id"])
    assert (row.generation, row.desired_generation, row.desired) == (2, 1, "run")
    assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")
    assert answer.headers["ETag"] != etag
    event = world.rows(t.job_event)[-1]
    assert (event.type, event.body["max_steps"]) == ("job.changed", 7)


def test_a_name_alone_does_not_disturb_the_coordinator(world: World, ready: Tenant) -> None:
    job = ready.job()
    with ready.sdk() as client:
        changed = client.jobs.update(job["id"], name="other", labels={"a": "b"})
    assert (changed.name, changed.labels, changed.generation) == ("other", {"a": "b"}, 1)
    assert (changed.spec["name"], changed.spec["labels"]) == ("other", {"a": "b"})


def test_a_change_to_what_stands_already_changes_nothing(world: World, ready: Tenant) -> None:
    job = ready.job()
    with ready.http() as http:
        for body in ({}, {"max_steps": 100}, {"name": "a job"}):
            answer = http.patch(f"/v1/jobs/{job['id']}", json=body)
            assert (answer.status_code, answer.json()["generation"]) == (200, 1)
    assert [row.type for row in world.rows(t.job_event)] == ["job.created"]


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({"max_steps": 0}, "/max_steps", "greater_than_equal"),
        ({"max_steps": None}, "/max_steps", "int_type"),
        ({"priority": "urgent"}, "/priority", "literal_error"),
        ({"budget": {"max_cost_usd": 5}}, "/budget/max_cost_usd", "not_available"),
        ({"budget": {"max_wall_hours": 0.01}}, "/budget/max_wall_hours", "lifetime"),
        ({"stop": {}}, "/stop", "extra_forbidden"),
        ({"max_steps": True}, "/max_steps", "int_type"),
        ({"max_steps": "5"}, "/max_steps", "int_type"),
        ({"budget": {"max_wall_hours": "5"}}, "/budget/max_wall_hours", "float_type"),
    ],
)
def test_a_change_is_refused_as_a_creation_would_be(
    world: World, ready: Tenant, body: dict[str, Any], pointer: str, code: str
) -> None:
    job = ready.job()
    with ready.http() as http:
        refused = http.patch(f"/v1/jobs/{job['id']}", json=body)
    assert refused.status_code == 422, refused.text
    assert [(one["pointer"], one["code"]) for one in refused.json()["errors"]] == [(pointer, code)]
    assert row_of(world, job["id"]).generation == 1


def test_an_ended_job_changes_for_its_restart_only(world: World, ready: Tenant) -> None:
    job = ready.ended(stop={"max_steps": 5})
    last = ready.checkpoint(job, step=5)
    with ready.sdk() as client:
        with pytest.raises(Conflict) as refused:
            client.jobs.restart(job["id"], last)
        changed = client.jobs.update(job["id"], max_steps=8)
        again = client.jobs.restart(job["id"], last)
    assert refused.value.code == "nothing_left"
    assert (changed.generation, changed.state) == (1, "succeeded")
    assert (again.generation, again.spec["stop"]["max_steps"]) == (2, 8)


def test_a_job_that_paused_itself_is_resumed_once(world: World, ready: Tenant) -> None:
    job = ready.job()
    world.change(t.job, job["id"], state="paused", observed_generation=1, queue_reason="no_signal")
    with ready.sdk() as client:
        generations = [client.jobs.resume(job["id"]).generation for _ in range(2)]
    assert generations == [2, 2]
    assert row_of(world, job["id"]).desired_generation == 2


def test_a_branch_is_a_new_job_from_the_copy_of_a_spec_and_a_checkpoint(
    world: World, ready: Tenant
) -> None:
    source = ready.job(labels={"team": "a"}, optimizer={"lr": 1e-4})
    older, newer = ready.checkpoint(source, step=3), ready.checkpoint(source, step=5)
    with ready.sdk() as client:
        first = client.jobs.branch(source["id"])
        second = client.jobs.branch(source["id"], older, name="another")
    assert first.id != source["id"]
    assert first.spec == source["spec"]
    assert {**second.spec, "name": source["name"]} == source["spec"]
    assert (first.name, second.name, first.labels) == ("a job", "another", {"team": "a"})
    assert (first.state, first.attempt, first.generation) == ("validating", 1, 1)
    attempts = {row.job_id: row for row in world.rows(t.attempt)}
    assert (attempts[first.id].from_checkpoint_id, attempts[first.id].base_step) == (newer, 5)
    assert (attempts[second.id].from_checkpoint_id, attempts[second.id].base_step) == (older, 3)
    assert (attempts[first.id].next_ordinal, attempts[first.id].unconsumed) == (40, [38, 39])
    created = next(row for row in world.rows(t.job_event) if row.job_id == first.id)
    assert created.body["branch_of"] == source["id"]
    kinds = {row.kind for row in world.rows(t.operation) if row.request == {"job_id": first.id}}
    assert kinds == {"prepare_job"}
    assert row_of(world, source["id"]).generation == 1


def test_overrides_are_laid_over_and_what_was_auto_is_resolved_anew(
    world: World, ready: Tenant
) -> None:
    source = ready.job()
    ready.checkpoint(source)
    with ready.sdk() as client:
        overrides = {
            "rollout": {"group_size": 2},
            "evaluation": None,
            "scheduling": {"max_staleness": 0},
        }
        made = client.jobs.branch(source["id"], overrides=overrides)
    spec = made.spec
    assert spec["rollout"]["group_size"] == 2
    assert spec["rollout"]["on_failure"]["min_group_size"] == 1
    assert (spec["evaluation"], spec["scheduling"]["order"]) == (None, "longest")
    assert spec["environments"] == source["spec"]["environments"]
    assert spec["rollout"]["groups_per_batch"] == source["spec"]["rollout"]["groups_per_batch"]


def test_other_tasks_begin_at_their_first(world: World, ready: Tenant) -> None:
    source = ready.job()
    ready.checkpoint(source)
    with ready.sdk() as client:
        made = client.jobs.branch(source["id"], overrides={"seed": 7})
    attempt = next(row for row in world.rows(t.attempt) if row.job_id == made.id)
    assert (attempt.base_step, attempt.next_ordinal, attempt.unconsumed) == (5, 0, [])


@pytest.mark.parametrize(
    ("overrides", "pointer"),
    [
        ({"model": {"base": "tiny-text"}}, "/overrides/model/base"),
        ({"rollout": {"group_size": 0}}, "/overrides/rollout/group_size"),
        ({"rollot": {}}, "/overrides/rollot"),
        ({"resources": {"placement": "colocated"}}, "/overrides/resources/placement"),
    ],
)
def test_a_branch_with_errors_makes_nothing(
    world: World, ready: Tenant, overrides: dict[str, Any], pointer: str
) -> None:
    source = ready.job()
    ready.checkpoint(source)
    with ready.sdk() as client, pytest.raises(Invalid) as refused:
        client.jobs.branch(source["id"], overrides=overrides)
    assert [one.pointer for one in refused.value.errors] == [pointer]
    assert len(world.rows(t.job)) == len(world.rows(t.attempt)) == 1


def test_a_branch_needs_a_whole_checkpoint_of_the_own_job_with_steps_left(
    world: World, ready: Tenant
) -> None:
    source, other = ready.job(stop={"max_steps": 5}), ready.job()
    path = f"/v1/jobs/{source['id']}/branch"
    with ready.http() as http:
        none = http.post(path)
        torn = http.post(path, json={"checkpoint": ready.checkpoint(source, state="writing")})
        foreign = http.post(path, json={"checkpoint": ready.checkpoint(other)})
        last = ready.checkpoint(source, step=5)
        done = http.post(path, json={"checkpoint": last})
        more = http.post(path, json={"checkpoint": last, "overrides": {"stop": {"max_steps": 6}}})
    with world.tenant("stranger").http() as http:
        hidden = http.post(path)
    assert [a.status_code for a in (none, torn, foreign, done, more, hidden)] == [
        409, 409, 404, 409, 201, 404,
    ]  # fmt: skip
    assert done.json()["code"] == "nothing_left"


def test_a_failed_branch_restarts_from_where_it_branched(world: World, ready: Tenant) -> None:
    source = ready.job()
    start = ready.checkpoint(source)
    with ready.sdk() as client:
        made = client.jobs.branch(source["id"])
        world.change(t.job, made.id, state="failed", tasks=TASKS)
        client.jobs.restart(made.id)
    attempts = [row for row in world.rows(t.attempt) if row.job_id == made.id]
    assert [row.from_checkpoint_id for row in attempts] == [start, start]


def test_a_branch_asked_twice_with_one_key_is_one_job(world: World, ready: Tenant) -> None:
    source = ready.job()
    ready.checkpoint(source)
    with ready.http(**{"Idempotency-Key": "once"}) as http:
        answers = {http.post(f"/v1/jobs/{source['id']}/branch").json()["id"] for _ in range(3)}
    assert len(answers) == 1
    assert len(world.rows(t.job)) == 2


def test_the_schema_is_served_without_a_key_and_names_every_field(world: World) -> None:
    with world.http("none") as http:
        answer = http.get("/v1/jobs/schema")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/schema+json"
    assert set(SPEC) <= set(answer.json()["properties"])


def test_a_creation_says_its_warnings(ready: Tenant) -> None:
    with ready.http() as http:
        spec = {**SPEC, "rollout": {"group_size": 1}}
        looked = http.post("/v1/jobs/validate", json=spec).json()
        created = http.post("/v1/jobs", json=spec).json()
    assert created["findings"] == looked["findings"] != []
