"""The built-in models learn by reinforcement, and do not without a true reward."""

from pathlib import Path
from statistics import median
from typing import Final

import pytest

from benchmarks.inprocess_rl import Settings, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHUFFLED_SEEDS: Final = (11, 12, 13, 14, 15)
"""Odd, so that the median is one of them; true rewards move every one of them by 0.9."""


async def outcome(
    model: str, path: Path, *, steps: int, seed: int = 11, is_shuffled: bool = False
) -> dict[str, object]:
    settings = Settings(
        model=model,
        seed=seed,
        steps=steps,
        groups=8,
        group_size=8,
        learning_rate=1e-4 if model == "tiny-calc" else 3e-4,
        is_shuffled=is_shuffled,
        evaluation_tasks=256,
    )
    return await run(settings, path)


def risen(result: dict[str, object], kind: str) -> float:
    before, after = result[f"{kind}_before"], result[f"{kind}_after"]
    assert isinstance(before, float)
    assert isinstance(after, float)
    return after - before


@pytest.mark.parametrize(("model", "steps"), [("tiny-calc", 24), ("tiny-text", 40)])
async def test_the_held_out_score_of_a_builtin_model_rises(
    model: str, steps: int, tmp_path: Path
) -> None:
    assert risen(await outcome(model, tmp_path, steps=steps), "eval") >= 0.3


async def test_the_score_stays_where_it_was_when_rewards_are_shuffled(tmp_path: Path) -> None:
    """Noise is a random walk of the weights: one seed in about thirty drifts by more than the limit."""
    drifts = []
    for seed in SHUFFLED_SEEDS:
        shuffled = await outcome("tiny-calc", tmp_path, steps=24, seed=seed, is_shuffled=True)
        drifts.append(risen(shuffled, "greedy"))
    assert abs(median(drifts)) <= 0.05, drifts
