"""Tasks that a filter lets through."""

from typing import Any

import pytest

from stores.system.preparation import Part
from venusrl.env.messages import Task
from workers.chores.dataset_tasks import filtered

TASKS = [
    Task("a", (), metadata={"level": 1, "hard": True}),
    Task("b", (), metadata={"level": 1.0, "hard": False}),
    Task("c", (), metadata={"level": True}),
    Task("d", (), metadata={"level": "1", "hard": None}),
]


def part(wanted: dict[str, Any]) -> Part:
    """An environment with this filter."""
    return Part(
        pointer="/environments/0",
        ref="calc@1",
        package=None,
        config={},
        lists={"train": "train"},
        limited_split="train",
        limit=1,
        filter=wanted,
        datasets=(),
    )


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({}, "abcd"),
        ({"level": 1}, "ab"),
        ({"level": True}, "c"),
        ({"level": "1"}, "d"),
        ({"hard": None}, "cd"),
        ({"level": 1, "hard": False}, "b"),
        ({"colour": "red"}, ""),
    ],
)
def test_metadata_are_compared_as_json_and_null_is_also_what_is_missing(
    wanted: dict[str, Any], left: str
) -> None:
    assert "".join(task.id for task in filtered(part(wanted), TASKS)) == left
