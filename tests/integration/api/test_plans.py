"""Plans over the API: asked, bounded, refused with a reason, answered by the chore."""

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from celery import Celery

from api.plans import limits
from infra.names import CHORE_TASK, PLAN_TASK
from scheduler.watch import ChoreWatch
from stores import tables as t
from stores.unit_of_work import Database
from tests.integration.api.chores import do_chores
from tests.integration.api.ran import ran
from tests.integration.api.world import SPEC, Tenant, World
from tests.support.requirements import requires
from venusrl.client import Conflict, Invalid, NotFound, OperationFailed
from venusrl.models.plans import PlanResult

pytestmark = [pytest.mark.integration, requires("postgres")]

PROFILE = {
    name: {"p10": low, "p50": middle, "p90": high}
    for name, (low, middle, high) in {
        "turns": (1, 2, 4),
        "prompt_tokens": (20, 30, 40),
        "output_tokens": (5, 10, 20),
        "observation_tokens": (5, 10, 20),
        "tool_s": (0.1, 0.2, 0.5),
    }.items()
}

SMALL = {**SPEC, "rollout": {"group_size": 2, "groups_per_batch": 2}, "stop": {"max_steps": 3}}


def answered(tenant: Tenant, **asked: Any) -> PlanResult:
    """A plan's answer, its chore done here."""
    with tenant.http() as http:
        created = http.post("/v1/plans", json={"replicas": 4, **asked})
        assert created.status_code == 202, created.text
        assert do_chores(tenant.world, "plan") == 1
        plan = http.get(f"/v1/plans/{created.json()['id']}").json()
    assert plan["state"] == "done", plan
    return PlanResult.model_validate(plan["result"])


def sources(result: PlanResult) -> dict[str, str]:
    """Where each input came from."""
    return {one.input: one.source for one in result.assumptions}


def test_a_spec_without_history_is_planned_from_a_profile_and_says_what_it_assumes(
    tenant: Tenant,
) -> None:
    tenant.environment()
    result = answered(tenant, spec=SMALL, profile=PROFILE, pool={"engines": 2})
    assert result.forecast is not None
    step = result.forecast.figures["step_s"]
    assert 0.0 < step.low <= step.median <= step.high
    assert result.forecast.engines == 2
    assert sources(result) == {
        "engine": "table", "rollouts": "profile", "engines": "chosen", "evaluation": "ignored"
    }  # fmt: skip
    assert sum(share.median for share in result.forecast.staleness) == pytest.approx(1, abs=0.3)


def test_an_unknown_environment_is_planned_from_its_limits_and_widely(tenant: Tenant) -> None:
    tenant.environment()
    result = answered(tenant, spec=SMALL)
    assert sources(result)["rollouts"] == "limits"
    assert result.model_error > 0.2
    assert result.warning is not None
    assert result.warning.startswith("nothing is known of calc: limits of the spec only")
    assert "no 80 % interval" in result.warning


def test_a_spec_is_planned_from_the_project_s_own_earlier_rollouts(tenant: Tenant) -> None:
    job = ran(tenant)
    result = answered(tenant, spec=SMALL)
    by_input = {one.input: one for one in result.assumptions}
    assert by_input["rollouts"].source == "recorded"
    assert job["id"] in by_input["rollouts"].detail
    assert by_input["engine"].source == "recorded"


def test_another_project_s_rollouts_are_not_learned_from(tenant: Tenant, world: World) -> None:
    ran(tenant)
    stranger = world.tenant("stranger")
    stranger.environment()
    assert sources(answered(stranger, spec=SMALL))["rollouts"] == "limits"


def test_a_spec_is_held_against_the_pool_that_is_asked_about(tenant: Tenant) -> None:
    tenant.environment()
    wide = {**SMALL, "resources": {"rollout_gpus": {"min": 5, "max": 6}}}
    result = answered(tenant, spec=wide, profile=PROFILE, pool={"engines": 8})
    assert result.forecast is not None
    assert result.forecast.engines == 6
    (said,) = [one.detail for one in result.assumptions if one.input == "engines"]
    assert said.startswith("6 of 8")
    for pool, pointer in (
        ({"engines": 4}, "/spec/resources/rollout_gpus/min"),
        ({"engines": 8, "sandboxes": 2}, "/spec/rollout/group_size"),
    ):
        with tenant.sdk() as client, pytest.raises(Invalid) as refused:
            client.plans.create({**wide, "evaluation": None}, pool=pool)
        (finding,) = refused.value.errors
        assert (finding.pointer, finding.code) == (pointer, "never_fits")


def test_a_group_of_one_is_refused_in_a_spec_and_in_a_what_if(tenant: Tenant) -> None:
    job = ran(tenant, 1)["id"]
    alone = {"group_size": 1, "groups_per_batch": 2}
    with tenant.sdk() as client:
        with pytest.raises(Invalid) as of_spec:
            client.plans.create({**SMALL, "rollout": alone})
        with pytest.raises(Invalid) as of_job:
            client.plans.whatif(job, {"rollout": alone})
    for refused in (of_spec, of_job):
        assert [one.code for one in refused.value.errors] == ["no_signal"]


def test_engines_and_auto_of_a_what_if_are_obeyed(tenant: Tenant) -> None:
    changes = {
        "resources": {"rollout_gpus": {"min": 3, "max": 3}},
        "scheduling": {"max_staleness": 1, "async_ratio": "auto"},
    }
    result = answered(tenant, job=ran(tenant)["id"], changes=changes)
    assert result.changed is not None
    assert result.changed.engines == 3
    assert sources(result)["/scheduling/async_ratio"] == "auto"


def test_neither_few_steps_nor_an_early_end_shorten_what_the_error_is_taken_over(
    tenant: Tenant,
) -> None:
    early = {"stop": {"max_steps": 1}}
    result = answered(tenant, job=ran(tenant)["id"], changes=early, steps=1)
    assert result.recorded is not None
    assert result.unchanged is not None
    assert result.changed is not None
    assert (result.recorded.steps, result.unchanged.steps, result.changed.steps) == (3, 3, 1)


def test_an_engine_is_as_large_as_it_reported(tenant: Tenant) -> None:
    job = ran(tenant)
    engines = [{"slots": None, "kv_pages": None}, {"slots": 8.0, "kv_pages": 1152.0}]
    tenant.world.add(
        t.job_schedule, job_id=job["id"], attempt_id=job["attempt_id"], head={},
        profile={"engines": engines},
    )  # fmt: skip
    result = answered(tenant, job=job["id"])
    assert result.recorded is not None
    assert result.recorded.slots == 8


def test_a_what_if_of_no_job_says_that_there_is_none(tenant: Tenant) -> None:
    with tenant.sdk() as client, pytest.raises(NotFound) as missing:
        client.plans.whatif("nojob")
    assert "nojob" in str(missing.value)


def test_a_what_if_shows_its_own_error_on_the_unchanged_settings(tenant: Tenant) -> None:
    result = answered(tenant, job=ran(tenant)["id"])
    assert result.changed is None
    assert result.recorded is not None
    assert result.unchanged is not None
    # Two groups of four seconds one after the other, and the update.
    assert result.recorded.figures["step_s"] == pytest.approx(9.0)
    planned = result.unchanged.figures["step_s"].median
    assert result.error["step_s"] == pytest.approx(planned / 9.0 - 1.0)
    # The simulated job runs both groups of a step at once: it is faster than what was made up.
    assert 3.0 < planned < 9.0
    assert result.bias == pytest.approx(9.0 / planned)


def test_a_what_if_forecasts_the_changed_settings_scaled_by_what_it_missed(
    tenant: Tenant,
) -> None:
    job = ran(tenant)
    larger = {"rollout": {"groups_per_batch": 4}, "scheduling": {"async_ratio": 1.0}}
    result = answered(tenant, job=job["id"], changes=larger, pool={"engines": 2, "sandboxes": 5})
    assert result.changed is not None
    assert result.unchanged is not None
    assert result.changed.engines == 2
    # Four sandboxes for agents hold half of the batch at a time.
    both = (result.changed.figures["step_s"].median, result.unchanged.figures["step_s"].median)
    assert both[0] > 1.2 * both[1]
    assert sources(result)["sandboxes"] == "chosen"


def test_the_same_question_has_the_same_answer(tenant: Tenant) -> None:
    job = ran(tenant)["id"]
    one, again = (answered(tenant, job=job, seed=3) for _ in range(2))
    assert one == again


@pytest.mark.parametrize(
    ("changes", "pointer", "reason"),
    [
        ({"model": {"base": "other"}}, "/changes/model/base", "another model"),
        ({"rollout": {"sampling": {"temperature": 0.5}}},
         "/changes/rollout/sampling/temperature", "other sampling"),
        ({"optimizer": {"lr": 0.1}}, "/changes/optimizer/lr", "what is learned"),
        ({"labels": {"a": "b"}}, "/changes/labels/a", "no effect"),
        ({"scheduling": {"max_staleness": -1}}, "/changes/scheduling/max_staleness", "greater"),
    ],
)  # fmt: skip
def test_what_cannot_be_modelled_is_refused_with_the_reason(
    tenant: Tenant, changes: dict[str, Any], pointer: str, reason: str
) -> None:
    job = ran(tenant, 1)
    with tenant.sdk() as client, pytest.raises(Invalid) as refused:
        client.plans.whatif(job["id"], changes)
    (finding,) = refused.value.errors
    assert finding.pointer == pointer
    assert reason in finding.message


def test_a_plan_that_is_too_large_is_refused_with_the_limit(tenant: Tenant) -> None:
    tenant.environment()
    large = {**SPEC, "rollout": {"group_size": 64, "groups_per_batch": 256}}
    with tenant.sdk() as client, pytest.raises(Invalid) as refused:
        client.plans.create(large)
    (finding,) = refused.value.errors
    assert finding.code == "plan_too_large"
    assert str(limits.ROLLOUTS_MAX) in finding.message


def test_a_job_without_a_step_is_nothing_to_learn_from(tenant: Tenant) -> None:
    job = tenant.job()
    with tenant.sdk() as client, pytest.raises(Conflict) as refused:
        client.plans.whatif(job["id"])
    assert refused.value.code == "nothing_recorded"


def test_a_job_whose_trajectories_are_gone_fails_with_what_is_missing(tenant: Tenant) -> None:
    job = ran(tenant, 1)
    for row in tenant.world.rows(t.rollout):
        tenant.world.change(t.rollout, row.id, trajectory_uri="jobs/gone")
    with tenant.sdk() as client:
        plan = client.plans.whatif(job["id"])
        do_chores(tenant.world, "plan")
        with pytest.raises(OperationFailed) as failed:
            client.plans.wait(plan)
    assert failed.value.code == "nothing_recorded"


class Wakes:
    """The broker's side: what it was asked to wake, and whether that is forgotten in time."""

    def __init__(self) -> None:
        self.sent: dict[str, tuple[str, bool]] = {}

    def send_task(self, name: str, args: list[Any], **options: Any) -> None:
        """Keep the task and whether it expires by the operation's id."""
        if args:
            self.sent[args[0]] = (name, options["expires"] is not None)


def test_a_plan_wakes_a_worker_of_its_own_and_its_wakes_do_not_pile_up(
    tenant: Tenant, world: World
) -> None:
    tenant.job()
    with tenant.sdk() as client:
        plan = client.plans.create(SMALL)
    (prepare,) = [row.id for row in world.rows(t.operation) if row.kind != "plan"]
    world.add(
        t.leadership, id=1, term=1, address="here", key=b"k", backend_pid=1,
        heartbeat_at=datetime.now(UTC),
    )  # fmt: skip
    wakes = Wakes()

    async def look() -> None:
        database = Database(world.settings.database_url, 2)
        try:
            await ChoreWatch(database, cast("Celery", wakes), 1).look()
        finally:
            await database.close()

    asyncio.run(look())
    assert wakes.sent == {plan.id: (PLAN_TASK, True), prepare: (CHORE_TASK, False)}


def test_a_plan_that_killed_its_process_is_started_once_more_and_then_it_is_poison(
    tenant: Tenant,
) -> None:
    tenant.environment()
    with tenant.sdk() as client:
        once = client.plans.create(SMALL, profile=PROFILE, replicas=4)
        twice = client.plans.create(SMALL, profile=PROFILE, replicas=4)
        tenant.world.change(t.operation, once.id, starts=1)
        tenant.world.change(t.operation, twice.id, starts=2)
        do_chores(tenant.world, "plan")
        assert client.plans.get(once.id).state == "done"
        with pytest.raises(OperationFailed) as failed:
            client.plans.wait(twice)
    assert failed.value.code == "poison"
    assert "2 times" in str(failed.value)


def test_an_invalid_spec_has_its_findings_below_spec(tenant: Tenant) -> None:
    with tenant.sdk() as client, pytest.raises(Invalid) as refused:
        client.plans.create({**SPEC, "environments": [{"ref": "nothing"}]})
    assert {one.pointer for one in refused.value.errors} == {"/spec/environments/0/ref"}


@pytest.mark.parametrize(
    "body", [{}, {"spec": SPEC, "job": "job_1"}, {"spec": SPEC, "changes": {"a": 1}}]
)
def test_a_plan_asks_one_question(tenant: Tenant, body: dict[str, Any]) -> None:
    with tenant.http() as http:
        assert http.post("/v1/plans", json=body).status_code == 422


def test_a_retried_request_makes_one_plan(tenant: Tenant) -> None:
    tenant.environment()
    with tenant.http(**{"Idempotency-Key": "k"}) as http:
        one, again = (http.post("/v1/plans", json={"spec": SMALL}).json() for _ in range(2))
    assert one["id"] == again["id"]
    assert sum(row.kind == "plan" for row in tenant.world.rows(t.operation)) == 1


def test_a_plan_is_its_project_s_own_and_no_other_operation_is_a_plan(
    tenant: Tenant, world: World
) -> None:
    tenant.job()
    (prepare,) = world.rows(t.operation)
    with tenant.sdk() as client:
        plan = client.plans.create(SMALL)
        assert client.operations.get(plan.id).kind == "plan"
        with pytest.raises(NotFound):
            client.plans.get(prepare.id)
    with world.tenant("stranger").sdk() as client, pytest.raises(NotFound):
        client.plans.get(plan.id)
