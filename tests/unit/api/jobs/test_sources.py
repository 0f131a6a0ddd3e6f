"""What a spec names outside itself: models of the project, datasets and their versions."""

from dataclasses import dataclass, field, replace
from typing import Any

from api.jobs.outcome import Outcome, Surroundings
from api.jobs.starts import reopened
from api.jobs.validation import validate
from api.system.registry import models
from infra.settings import Settings
from tests.unit.api.jobs.test_validation import SPEC, Version, values


@dataclass
class DatasetVersion:
    """A dataset version's row."""

    version: int = 1
    state: str = "ready"
    files: dict[str, Any] = field(default_factory=lambda: {"train": {"rows": 4}})


def look(datasets: list[dict[str, Any]], **changes: Any) -> Outcome:
    """Validate the smallest spec with datasets and changes."""
    around = Surroundings(
        models(),
        {"calc": [Version()]},
        Settings.from_env({}),
        model_refs=["mine", "upload:mdl_1"],
        datasets={
            "sums": [DatasetVersion(), DatasetVersion(2, files={"extra": {"rows": 3}})],
            "new": [DatasetVersion(1, "validating")],
        },
    )
    environment = {"ref": "calc", "datasets": datasets, **changes.pop("environment", {})}
    return validate({**SPEC, "environments": [environment], **changes}, around)


def findings(outcome: Outcome) -> list[tuple[str, str]]:
    """Pointers and codes."""
    return [(one.pointer, one.code) for one in outcome.findings]


def test_a_dataset_without_a_version_is_pinned_with_its_reason() -> None:
    outcome = look([{"ref": "sums"}, {"ref": "sums@1", "weight": 2.0}])
    assert outcome.spec is not None
    refs = [one["ref"] for one in outcome.spec["environments"][0]["datasets"]]
    assert refs == ["sums@2", "sums@1"]
    assert values(outcome)["/environments/0/datasets/0/ref"] == "sums@2"
    assert "/environments/0/datasets/1/ref" not in values(outcome)


def test_a_split_of_a_dataset_is_a_split_of_the_job() -> None:
    extra = {"split": "extra"}
    assert look([{"ref": "sums"}], environment=extra).is_valid
    assert findings(look([], environment=extra)) == [("/environments/0/split", "unknown_split")]


def test_datasets_that_are_unknown_unready_or_named_twice_are_refused() -> None:
    first = "/environments/0/datasets/0/ref"
    outcome = look([{"ref": "sum"}])
    assert findings(outcome) == [(first, "unknown_dataset")]
    assert "sums" in outcome.findings[0].hint
    assert findings(look([{"ref": "new"}])) == [(first, "version_not_ready")]
    twice = look([{"ref": "sums"}, {"ref": "sums@2"}])
    assert findings(twice) == [("/environments/0/datasets", "repeated_dataset")]


def test_models_of_the_project_are_near_names() -> None:
    outcome = look([], model={"base": "upload:mdl_2"})
    (one,) = outcome.findings
    assert (one.pointer, one.code) == ("/model/base", "unknown_model")
    assert "upload:mdl_1" in one.hint


def test_a_model_of_the_project_is_a_base() -> None:
    mine = models()["tiny-calc"].model_copy(update={"name": "upload:mdl_1"})
    around = Surroundings(
        {**models(), mine.name: mine}, {"calc": [Version()]}, Settings.from_env({})
    )
    spec = {**SPEC, "model": {"base": mine.name}}
    assert validate(spec, around).is_valid
    unstable = mine.model_copy(update={"renderer": "jinja"})
    found = validate(spec, replace(around, models={mine.name: unstable}))
    assert findings(found) == [("/model/base", "template_unstable")]


def test_a_branch_keeps_the_versions_and_opens_the_rest() -> None:
    first = look([{"ref": "sums"}]).spec
    assert first is not None
    opened = reopened(first)
    assert opened["environments"][0]["ref"] == "calc@1"
    assert opened["environments"][0]["datasets"] == first["environments"][0]["datasets"]
    assert opened["optimizer"]["lr"] == "auto"
    assert opened["model"]["context_tokens"] is None
