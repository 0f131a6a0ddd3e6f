"""Pairs of verdicts: every kind of difference is one of its own."""

from dataclasses import replace

import pytest

from benchmarks.density.report import markdown
from benchmarks.density.run import Density
from benchmarks.density.verdicts import Place, Verdict, compare, upper_limit

RIGHT = Verdict(1.0, "done", "", 0, 1, "aa")
WRONG = replace(RIGHT, reward=0.0)
EARNED: dict[Place, float] = {(0, 0): 1.0, (0, 1): 0.0}
ALONE: dict[Place, Verdict] = {(0, 0): RIGHT, (0, 1): WRONG}


def test_equal_runs_differ_in_nothing() -> None:
    found = compare(ALONE, ALONE, EARNED)
    assert found.pairs == 2
    kinds = ("missing", "flipped", "late", "again", "other_text", "wrong")
    assert {getattr(found, kind) for kind in kinds} == {()}


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"reward": 0.0}, {"flipped", "wrong"}),
        ({"reward": None, "cause": "grader_crashed"}, {"flipped", "wrong"}),
        ({"end": "env_failed"}, {"flipped"}),
        ({"timeouts": 1}, {"late"}),
        ({"current_tries": 2}, {"again"}),
        ({"saw": "bb"}, {"other_text"}),
    ],
    ids=["reward", "no score", "end", "timeout", "try", "reply"],
)
def test_a_difference_is_named(changed: dict[str, object], where: set[str]) -> None:
    changes = {name.removeprefix("current_"): value for name, value in changed.items()}
    full = {**ALONE, (0, 0): replace(RIGHT, **changes)}  # type: ignore[arg-type]
    found = compare(ALONE, full, EARNED)
    kinds = ("flipped", "late", "again", "other_text", "wrong")
    assert {kind for kind in kinds if getattr(found, kind)} == where


def test_a_rollout_of_one_run_alone_is_no_pair() -> None:
    found = compare(ALONE, {(0, 0): RIGHT}, EARNED)
    assert (found.pairs, found.missing) == (1, ((0, 1),))


def test_the_upper_limit_of_a_share() -> None:
    """Of none in 300, 1 - 0.05^(1/300); of two in ten, by the table of Clopper and Pearson."""
    assert upper_limit(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300))
    assert upper_limit(2, 10) == pytest.approx(0.5069, abs=1e-4)
    assert upper_limit(10, 10) == 1.0


def test_the_page_says_what_differs_and_what_a_score_costs() -> None:
    full = Density(16, {**ALONE, (0, 0): WRONG}, 10.0, 100.0, 16, 2**30)
    alone = Density(2, ALONE, 40.0, 80.0, 2, 2**20)
    text = markdown(compare(alone.verdicts, full.verdicts, EARNED), alone, full)
    assert "| flipped verdicts | 1: 0/0 |" in text
    assert "| 16 | 10 | 720 | 16 | 100 | 1024 |" in text
