"""The last step of a job from its epochs."""

from typing import Any

import pytest

from workers.chores.epochs import bounded_spec, steps_of
from workers.chores.handling import ChoreFailed


def spec(
    max_epochs: float | None = 2.0, max_steps: int | None = None, **use: Any
) -> dict[str, Any]:
    """A normalised spec in batches of four."""
    return {
        "environments": [{"split": "train", "limit": None, **use}],
        "rollout": {"groups_per_batch": 4},
        "stop": {"max_steps": max_steps, "max_epochs": max_epochs},
        "resolved": [{"pointer": "/optimizer/lr", "value": 0.1, "reason": "r"}],
    }


LISTS: dict[str, dict[str, Any]] = {"train": {"count": 30}, "environments/1/train": {"count": 10}}


@pytest.mark.parametrize(
    ("epochs", "tasks", "batch", "steps"),
    [(2.0, 30, 4, 15), (1.0, 30, 4, 7), (0.01, 30, 4, 1), (0.29, 100, 1, 29), (3.0, 100, 16, 18)],
)
def test_epochs_make_whole_steps_rounded_down_and_at_least_one(
    epochs: float, tasks: int, batch: int, steps: int
) -> None:
    assert steps_of(epochs, tasks, batch) == steps


def test_epochs_alone_are_the_end_and_the_spec_says_why() -> None:
    made = bounded_spec(spec(), LISTS, (0, 0))
    assert made["stop"] == {"max_steps": 15, "max_epochs": 2.0}
    assert made["resolved"][-1] == {
        "pointer": "/stop/max_steps",
        "value": 15,
        "reason": "2 epochs of 30 tasks in batches of 4",
    }


@pytest.mark.parametrize(("max_steps", "last"), [(10, 10), (15, 15), (100, 15)])
def test_the_smaller_of_steps_and_epochs_holds(max_steps: int, last: int) -> None:
    assert bounded_spec(spec(max_steps=max_steps), LISTS, (0, 0))["stop"]["max_steps"] == last


def test_a_spec_without_epochs_is_left_alone() -> None:
    whole = spec(None, 9)
    assert bounded_spec(whole, LISTS, (0, 0)) is whole


def test_an_epoch_has_the_tasks_that_the_limit_leaves_of_every_environment() -> None:
    several = spec(limit=6)
    several["environments"].append({"split": "train", "limit": None})
    assert bounded_spec(several, LISTS, (0, 0))["stop"]["max_steps"] == 8
    cut = {"train": {"count": 30, "sources": [{"name": "a@1", "count": 30, "weight": 1.0}]}}
    assert bounded_spec(spec(limit=6), cut, (0, 0))["stop"]["max_steps"] == 15


def test_a_branch_goes_on_in_its_epochs_or_counts_its_own_on_other_tasks() -> None:
    assert bounded_spec(spec(), LISTS, (10, 44))["stop"]["max_steps"] == 15
    assert bounded_spec(spec(), LISTS, (10, 0))["stop"]["max_steps"] == 25


def test_a_branch_behind_its_last_epoch_has_nothing_left() -> None:
    with pytest.raises(ChoreFailed, match="end at step 15") as raised:
        bounded_spec(spec(), LISTS, (15, 70))
    assert raised.value.code == "nothing_left"
