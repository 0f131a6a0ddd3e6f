"""The published JSON Schema: as the model is, whole, and named by the examples."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from venusrl._spec import laid_over, parse_json, read_spec
from venusrl.client import SpecUnreadable
from venusrl.models.job_schema import job_schema
from venusrl.models.job_spec import JobSpec

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "docs" / "reference" / "job-spec.schema.json"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema of the spec and of all its parts."""
    yield schema
    yield from (one for one in schema["$defs"].values() if one["type"] == "object")


def test_the_published_file_is_the_model() -> None:
    assert json.loads(PUBLISHED.read_text()) == job_schema(), "run `make openapi`"


def test_every_field_is_described_and_no_other_is_allowed() -> None:
    for part in objects(job_schema()):
        assert part["additionalProperties"] is False, part["title"]
        for name, field in part["properties"].items():
            assert field.get("description") or "$ref" in field, (part["title"], name)


def test_fields_of_the_whole_form_are_there() -> None:
    assert set(job_schema()["properties"]) == {
        "spec_version", "name", "seed", "model", "environments", "judges", "rollout", "algorithm",
        "optimizer", "scheduling", "evaluation", "checkpoints", "resources", "stop", "budget",
        "on_divergence", "retention", "secrets", "trackers", "labels", "resolved",
    }  # fmt: skip


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_name_the_schema_for_editors_and_fit_it(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    assert (path.parent / first.partition("=")[2]).resolve() == PUBLISHED
    JobSpec.model_validate(read_spec(path))


def test_single_values_are_laid_over_by_path() -> None:
    below = {"stop": {"max_steps": 5, "max_epochs": None}, "seed": 1}
    above = ["stop.max_steps=9", "optimizer.lr=3e-4", "evaluation=null", "labels.a=yes"]
    assert laid_over(below, above) == {
        "stop": {"max_steps": 9, "max_epochs": None},
        "seed": 1,
        "optimizer": {"lr": 3e-4},
        "evaluation": None,
        "labels": {"a": "yes"},
    }
    assert below["stop"] == {"max_steps": 5, "max_epochs": None}


@pytest.mark.parametrize("text", ["max_steps", "=3", "a..b=1", "a=[1"])
def test_what_is_no_path_and_value_is_refused(text: str) -> None:
    with pytest.raises(SpecUnreadable):
        laid_over({}, [text])


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "[1]", "{", '{"a": 1e400}'])
def test_json_that_is_no_spec_is_refused(text: str) -> None:
    with pytest.raises(SpecUnreadable):
        parse_json(text)
