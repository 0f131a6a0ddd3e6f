"""The built-in models learn by reinforcement, and do not without a true reward."""

from pathlib import Path

import pytest

from benchmarks.inprocess_rl import Settings, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def rise(model: str, path: Path, *, steps: int, is_shuffled: bool = False) -> float:
    settings = Settings(
        model=model,
        seed=11,
        steps=steps,
        groups=8,
        group_size=8,
        learning_rate=3e-4,
        is_shuffled=is_shuffled,
        evaluation_tasks=256,
    )
    result = (await run(settings, path))["rise"]
    assert isinstance(result, float)
    return result


@pytest.mark.parametrize("model", ["tiny-calc", "tiny-text"])
async def test_the_held_out_score_of_a_builtin_model_rises(model: str, tmp_path: Path) -> None:
    assert await rise(model, tmp_path, steps=35) >= 0.3


async def test_the_score_does_not_rise_when_rewards_are_shuffled(tmp_path: Path) -> None:
    assert await rise("tiny-calc", tmp_path, steps=15, is_shuffled=True) <= 0.1
