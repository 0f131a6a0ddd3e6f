"""Several environments of a spec: names, splits, limits, what selects the best checkpoint."""

from typing import Any

import pytest

from api.jobs.outcome import Outcome, Surroundings
from api.jobs.starts import laid_over, merged, reopened
from api.jobs.validation import validate
from api.system.registry import models
from infra.settings import Settings
from tests.unit.api.jobs.test_validation import SPEC, Version, values

KNOWN = {
    "calc": [Version(1), Version(2)],
    "shell": [Version(1, splits={"hard": 3, "test": 2}, manifest={"limits": {"wall_s": 9000.0}})],
}


def look(**changes: Any) -> Outcome:
    """Validate the smallest spec with changes, in a project of two environments."""
    around = Surroundings(models(), KNOWN, Settings.from_env({}))
    return validate({**SPEC, **changes}, around)


def evaluating(*environments: dict[str, Any], **more: Any) -> Outcome:
    """The same with environments of the evaluation."""
    return look(evaluation={"environments": list(environments), **more})


def found(outcome: Outcome) -> list[tuple[str, str]]:
    """Pointers and codes."""
    return [(one.pointer, one.code) for one in outcome.findings]


def test_environments_of_evaluations_are_pinned_with_limits_and_splits_of_their_own() -> None:
    outcome = evaluating({"ref": "shell", "split": "hard"}, {"ref": "calc@1", "max_turns": 2})
    assert outcome.spec is not None, outcome.findings
    uses = outcome.spec["evaluation"]["environments"]
    assert [(one["ref"], one["split"]) for one in uses] == [("shell@1", "hard"), ("calc@1", "test")]
    assert (uses[0]["wall_s"], uses[1]["max_turns"]) == (9000.0, 2)
    assert values(outcome)["/evaluation/environments/1/split"] == "test"
    again = look(**outcome.spec)
    assert (again.spec, again.resolved) == (outcome.spec, [])


def test_the_split_of_an_evaluation_need_not_be_one_of_the_jobs_own_environment() -> None:
    assert evaluating({"ref": "shell"}, split="hard").is_valid
    assert found(evaluating({"ref": "calc"}, split="hard")) == [
        ("/evaluation/environments/0/split", "unknown_split")
    ]


@pytest.mark.parametrize(
    ("outcome", "pointer", "code"),
    [
        (lambda: evaluating({"ref": "shel"}), "/evaluation/environments/0/ref",
         "unknown_environment"),
        (lambda: evaluating({"ref": "shell"}, {"ref": "shell", "config": {"a": 1}}),
         "/evaluation/environments/1/name", "repeated_name"),
        (lambda: look(environments=[{"ref": "calc"}, {"ref": "calc", "limit": 1}]),
         "/environments/1/name", "repeated_name"),
        (lambda: evaluating({"ref": "shell"}, {"ref": "calc"}, tasks=5_000),
         "/evaluation/tasks", "too_many_tasks"),
        (lambda: evaluating({"ref": "calc", "split": "train"}),
         "/evaluation/environments/0/split", "not_held_out"),
        (lambda: evaluating({"ref": "calc", "wall_s": 1.0}),
         "/evaluation/environments/0/wall_s", "lifetime"),
        (lambda: look(evaluation={"environments": [{"ref": "shell"}]},
                      budget={"max_wall_hours": 2.0}), "/budget/max_wall_hours", "lifetime"),
        (lambda: evaluating({"ref": "shell"}, select_best="calc/score"),
         "/evaluation/select_best", "unknown_metric"),
        (lambda: evaluating({"ref": "shell"}, select_best="pass@3", rollouts_per_task=4),
         "/evaluation/select_best", "unknown_metric"),
        (lambda: evaluating({"ref": "shell"}, select_best="no such"),
         "/evaluation/select_best", "unknown_metric"),
    ],
)  # fmt: skip
def test_what_contradicts_is_found_at_its_place(outcome: Any, pointer: str, code: str) -> None:
    assert [one for one in found(outcome()) if one[1] != "fewer_tasks"] == [(pointer, code)]


@pytest.mark.parametrize(
    "wanted", ["score", "avg@4", "pass@1", "pass@4", "right", "shell/score", "shell/pass@2"]
)
def test_numbers_that_an_evaluation_gives_may_select_the_best_checkpoint(wanted: str) -> None:
    outcome = evaluating({"ref": "shell"}, select_best=wanted, rollouts_per_task=4)
    assert outcome.findings == []


def test_the_same_environment_may_stand_twice_under_two_names() -> None:
    outcome = evaluating({"ref": "shell"}, {"ref": "shell", "name": "shell-hard", "split": "hard"})
    assert outcome.findings == []


def test_a_job_may_train_on_several_environments() -> None:
    outcome = look(environments=[{"ref": "calc"}, {"ref": "shell", "split": "hard", "weight": 2.0}])
    assert outcome.spec is not None, outcome.findings
    assert values(outcome)["/environments/1/ref"] == "shell@1"
    assert outcome.spec["environments"][1]["wall_s"] == 9000.0


def test_a_branch_keeps_versions_and_opens_the_limits_of_all_environments() -> None:
    spec = evaluating({"ref": "calc"}).spec
    assert spec is not None
    opened = reopened(spec, {})
    use = opened["evaluation"]["environments"][0]
    assert (use["ref"], use["split"], use["max_turns"], use["wall_s"]) == (
        "calc@2", None, None, None,
    )  # fmt: skip


def test_a_last_step_that_epochs_made_is_open_again_for_a_branch() -> None:
    spec = look(stop={"max_epochs": 3.0}).spec
    assert spec is not None
    assert spec["stop"]["max_steps"] is None
    reason = {"pointer": "/stop/max_steps", "value": 8, "reason": "3 epochs of 10 tasks"}
    run = merged(spec, {"stop": {"max_steps": 8}, "resolved": [*spec["resolved"], reason]})
    assert reopened(run, {"stop": {"max_epochs": 3.0}})["stop"]["max_steps"] is None
    assert reopened(run, {"stop": {"max_steps": 50}})["stop"]["max_steps"] == 50


def test_a_job_that_names_no_end_has_a_hundred_steps_and_says_so() -> None:
    assert values(look())["/stop/max_steps"] == 100
    assert "/stop/max_steps" not in values(look(stop={"max_steps": 7}))


def test_another_strategy_brings_its_own_numbers() -> None:
    spec = {"scheduling": {"strategy": "ttl", "knobs": {"lag_max": 1}, "max_staleness": 2}}
    changed = laid_over(spec, {"scheduling": {"strategy": "venus"}})
    assert changed == {"scheduling": {"strategy": "venus", "max_staleness": 2}}
    same = laid_over(spec, {"scheduling": {"strategy": "ttl", "knobs": {"rollart": 1}}})
    assert same["scheduling"]["knobs"] == {"lag_max": 1, "rollart": 1}
    assert spec["scheduling"]["knobs"] == {"lag_max": 1}, "the recorded spec stays as it is"
