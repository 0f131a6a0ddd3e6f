"""Findings stand at a line wherever one is known."""

from pathlib import Path

import pytest

from venusrl.env.host.manifest import Finding
from venusrl.env.local.init import class_name
from venusrl.env.local.places import place_of

MANIFEST = 'name = "a"\n\n[limits]\nmax_turns = 0\n'


@pytest.mark.parametrize(
    ("finding", "place"),
    [
        (Finding("venus.toml", "/limits/max_turns", "m"), "venus.toml:4"),
        (Finding("venus.toml", "/limits", "m"), "venus.toml:3"),
        (Finding("venus.toml", "/sdk", "is missing"), "venus.toml"),
        (Finding("cases/a.jsonl", "/12/expect/total", "m"), "cases/a.jsonl:12"),
        (Finding("env.py", "/7", "m"), "env.py:7"),
        (
            Finding("env.py", "", "setup raised ValueError: no at parts/deep.py:9"),
            "parts/deep.py:9",
        ),
        (Finding("tasks/train.jsonl", "", "bad_task: train.jsonl:3: id"), "tasks/train.jsonl:3"),
        (Finding("tasks/train.jsonl", "", "bad_task: no file"), "tasks/train.jsonl"),
    ],
)
def test_the_place_of_a_finding(tmp_path: Path, finding: Finding, place: str) -> None:
    (tmp_path / "venus.toml").write_text(MANIFEST)
    assert str(place_of(finding, tmp_path)) == place


@pytest.mark.parametrize(
    ("name", "word"),
    [("sums", "Sums"), ("my-env_2", "MyEnv2"), ("task", "TaskEnv"), ("true", "TrueEnv")],
)
def test_a_name_becomes_a_class_that_shadows_nothing(name: str, word: str) -> None:
    assert class_name(name) == word
