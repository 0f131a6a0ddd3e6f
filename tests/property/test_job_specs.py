"""Any spec that validates can be planned and run by every reader; any other has findings with places."""

import json
from typing import Any, cast

from hypothesis import HealthCheck, event, given, settings

from api.jobs.outcome import Surroundings
from api.jobs.validation import validate
from api.system.registry import models
from domain.commands import GrantGang
from domain.events import JobSubmitted
from domain.ids import AttemptId, JobId, OrganizationId, ProjectId
from domain.plan import Pool
from domain.states import Desired, JobState
from domain.task_lists import own_list
from infra.settings import Settings
from scheduler.core.coordinator import Coordinator
from scheduler.spec import plan_of, read_spec
from stores.system.jobs import JobRow
from tests.support.spec_strategies import DOCUMENTS_OF_ALL_KINDS, SPECS, mended
from tests.unit.api.jobs.test_validation import Version
from venusrl.models.job_spec import JobSpec
from workers.chores.epochs import bounded_spec
from workers.fleet.job_spec import read_spec as read_for_grading
from workers.rollout.job_spec import limits_of
from workers.rollout.job_spec import read_spec as read_for_rollouts
from workers.trainer.config import read_spec as read_for_training

SETTINGS = Settings.from_env({})
AROUND = Surroundings(models(), {"calc": [Version()]}, SETTINGS)

HINTLESS = frozenset(
    {"above_group_size", "below_min", "context_too_long", "never_fits", "not_held_out", "too_large"}
)
"""Codes whose message says what to change."""

many = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def job_row(spec: dict[str, Any]) -> JobRow:
    """The row of a queued job with this spec, after its way through a JSON column."""
    return JobRow(
        job_id=JobId("job_a"),
        organization_id=OrganizationId("org_1"),
        project_id=ProjectId("prj_1"),
        spec=json.loads(json.dumps(spec)),
        tasks={},
        generation=1,
        observed_generation=0,
        desired_generation=1,
        desired=Desired.RUN,
        state=JobState.QUEUED,
        reason=None,
        attempt_id=AttemptId("att_a"),
        base_step=0,
        next_ordinal=0,
        unconsumed=(),
    )


def assert_planned(row: JobRow, chosen: Settings) -> None:
    """Scheduler, trainer, engines and graders read the spec, and the empty pool takes the job."""
    plan = plan_of(row, read_spec(row.spec), chosen)
    pool = Pool(
        engines=chosen.pool.engines,
        trainers=chosen.pool.trainers,
        sandboxes=chosen.limits.sandboxes * chosen.pool.nodes,
        grading_reserve=1,
    )
    core = Coordinator(pool, checking=True)
    submitted = JobSubmitted(plan, 1)
    assert core.accept(submitted) is None
    assert [c for c in core.step(0.0, submitted) if isinstance(c, GrantGang)]
    assert read_for_training(row.spec).optimizer.lr > 0
    read_for_grading(row.spec)
    evaluation = cast("Any", row.spec["evaluation"]) or {"environments": []}
    own = len(cast("Any", row.spec["environments"]))
    manifests: list[dict[str, Any]] = [{}] * (own + len(evaluation["environments"]))
    rollouts = read_for_rollouts(row.spec, manifests, chosen.limits.context_tokens)
    for number in range(own):
        assert limits_of(rollouts, 96, False, number).max_turns >= 1
    for number in range(len(evaluation["environments"])):
        assert limits_of(rollouts, 96, True, number).max_turns >= 1


def prepared(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec as the job's preparation leaves it, which knows its tasks."""
    lists = {own_list(n, use["split"]): {"count": 10} for n, use in enumerate(spec["environments"])}
    return dict(bounded_spec(spec, lists, (0, 0)))


@many
@given(SPECS)
def test_a_valid_spec_is_planned_and_is_its_own_normal_form(drawn: dict[str, Any]) -> None:
    body = mended(drawn, AROUND)
    event("as drawn" if body == drawn else "mended")
    outcome = validate(body, AROUND)
    assert outcome.spec is not None, outcome.findings
    assert_planned(job_row(prepared(outcome.spec)), SETTINGS)
    again = validate(outcome.spec, AROUND)
    assert (again.spec, again.resolved) == (outcome.spec, [])
    written = JobSpec.model_validate(outcome.spec).model_dump(mode="json")
    assert written == outcome.spec
    assert "auto" not in {one["value"] for one in outcome.spec["resolved"]}


@many
@given(DOCUMENTS_OF_ALL_KINDS)
def test_a_refused_spec_has_findings_at_places_of_the_document(body: dict[str, Any]) -> None:
    outcome = validate(body, AROUND)
    assert outcome.is_valid == (outcome.spec is not None)
    errors = [one for one in outcome.findings if one.severity == "error"]
    assert bool(errors) != outcome.is_valid
    for one in outcome.findings:
        assert one.code
        assert one.message
        assert one.hint or one.code in HINTLESS, one
        assert one.pointer == "" or one.pointer.startswith("/"), one
    assert validate(body, AROUND).findings == outcome.findings
