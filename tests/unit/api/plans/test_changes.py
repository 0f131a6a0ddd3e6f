"""Changes of a what-if: read, resolved and held against the pool as a job's spec is."""

from typing import Any

import pytest

from api.jobs.resolution import settle
from api.plans.changes import Changed, changed_of
from api.problems import Finding, Problem
from infra.settings import Settings
from venusrl.models.job_spec import JobSpec
from venusrl.models.plans import PlanPool

SETTINGS = Settings.from_env({})
"""Two engines, one node of 256 sandboxes."""


def recorded(**parts: Any) -> dict[str, Any]:
    """A normalised spec."""
    submitted = {"name": "a", "model": {"base": "m"}, "environments": [{"ref": "calc@1"}], **parts}
    spec = JobSpec.model_validate(submitted)
    normal = spec.model_dump(mode="json")
    normal["resolved"] = [
        {"pointer": pointer, "value": value, "reason": reason}
        for pointer, value, reason in settle(spec, normal, SETTINGS)
    ]
    return normal


def changed(changes: dict[str, Any], pool: PlanPool | None = None, **parts: Any) -> Changed:
    """The changed spec."""
    return changed_of(recorded(**parts), changes, pool or PlanPool(), SETTINGS)


def refused(changes: dict[str, Any], pool: PlanPool | None = None, **parts: Any) -> Finding:
    """The one finding."""
    with pytest.raises(Problem) as problem:
        changed(changes, pool, **parts)
    assert problem.value.status == 422
    (finding,) = problem.value.errors
    return finding


@pytest.mark.parametrize(
    ("changes", "pointer", "value"),
    [
        ({"scheduling": {"async_ratio": "auto"}}, "async_ratio", 1.5),
        ({"scheduling": {"async_ratio": "auto", "max_staleness": 0}}, "async_ratio", 1.0),
        ({"scheduling": {"order": "auto"}}, "order", "oldest"),
    ],
)
def test_auto_is_resolved_before_the_plan_is_queued(
    changes: dict[str, Any], pointer: str, value: object
) -> None:
    fixed = {"max_staleness": 2, "async_ratio": 3.0, "order": "nearest"}
    found = changed(changes, scheduling=fixed)
    assert found.spec["scheduling"][pointer] == value
    assert [one[:2] for one in found.chosen] == [(f"/scheduling/{pointer}", value)]


def test_what_the_job_left_open_follows_what_is_changed_beside_it() -> None:
    found = changed({"scheduling": {"max_staleness": 2}}, scheduling={"max_staleness": 0})
    assert (found.spec["scheduling"]["async_ratio"], found.spec["scheduling"]["order"]) == (
        1.5,
        "oldest",
    )


def test_what_the_job_chose_stays() -> None:
    fixed = {"max_staleness": 0, "async_ratio": 1.0, "order": "nearest"}
    found = changed({"scheduling": {"max_staleness": 2}}, scheduling=fixed)
    assert found.spec["scheduling"]["async_ratio"] == 1.0
    assert found.chosen == []


def test_engines_may_be_changed_beyond_this_installation() -> None:
    found = changed({"resources": {"rollout_gpus": {"min": 3, "max": 3}}})
    assert found.has_engines
    assert found.spec["resources"]["rollout_gpus"] == {"min": 3, "max": 3}
    assert not changed({"rollout": {"group_size": 4}}).has_engines


def test_the_most_engines_follow_a_least_that_is_above_them() -> None:
    found = changed({"resources": {"rollout_gpus": {"min": 5}}})
    assert found.spec["resources"]["rollout_gpus"] == {"min": 5, "max": 5}


def test_a_least_above_the_most_is_refused() -> None:
    finding = refused({"resources": {"rollout_gpus": {"min": 4, "max": 2}}})
    assert (finding.pointer, finding.code) == ("/changes/resources/rollout_gpus/max", "below_min")


def test_a_pool_below_the_changed_least_is_refused() -> None:
    engines = {"resources": {"rollout_gpus": {"min": 4, "max": 4}}}
    finding = refused(engines, PlanPool(engines=3))
    assert (finding.pointer, finding.code) == ("/changes/resources/rollout_gpus/min", "never_fits")


def test_a_pool_that_holds_no_group_is_refused_where_it_was_changed() -> None:
    group = {"rollout": {"group_size": 4}}
    assert refused({}, PlanPool(sandboxes=4), **group).pointer == "/pool/sandboxes"
    assert changed({}, PlanPool(sandboxes=5), evaluation=None, **group).spec
    larger = {"rollout": {"group_size": 256}}
    assert refused(larger, evaluation=None).pointer == "/changes/rollout/group_size"


def test_a_group_of_one_is_refused() -> None:
    finding = refused({"rollout": {"group_size": 1}})
    assert (finding.pointer, finding.code) == ("/changes/rollout/group_size", "no_signal")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"nothing": 1}, "/changes/nothing"),
        ({"nothing": {"deep": 1}}, "/changes/nothing"),
        ({"rollout": {"group_sise": 4}}, "/changes/rollout/group_sise"),
    ],
)
def test_an_unknown_field_is_told_apart_from_one_without_effect(
    changes: dict[str, Any], pointer: str
) -> None:
    finding = refused(changes)
    assert finding.pointer == pointer
    assert "has no field" in finding.message


def test_an_unknown_field_of_a_known_part_has_a_near_name() -> None:
    assert "group_size" in refused({"rollout": {"group_sise": 4}}).hint


def test_a_known_field_without_effect_still_says_so() -> None:
    assert "no effect" in refused({"name": "other"}).message
