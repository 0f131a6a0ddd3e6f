"""Predictors of a wanted rank correlation."""

import math

import pytest

from benchmarks.schedule.predictor import predictor_of, sample_of, spearman
from benchmarks.workloads import workload_of
from domain.ids import AttemptId, group_id, rollout_id
from tests.unit.benchmarks.schedule.small import SMALL


def test_spearman_of_ranks_with_ties() -> None:
    assert spearman([1, 2, 3, 4], [10, 100, 1_000, 10_000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(math.sqrt(0.75))


@pytest.mark.parametrize(
    ("quality", "tolerance"), [(0.0, 0.1), (0.7, 0.02), (0.98, 0.02), (1.0, 0)]
)
def test_estimates_reach_the_wanted_rank_correlation(quality: float, tolerance: float) -> None:
    workload = workload_of(SMALL, 1, None)
    predictor = predictor_of(workload, quality)
    truths, estimates = [], []
    for ordinal in range(60):
        for member, one in enumerate(workload.group(ordinal)):
            name = rollout_id(group_id(AttemptId("att_1"), ordinal), member)
            for done in range(1, len(one.turns), 5):
                truths.append(sum(turn.output_tokens for turn in one.turns[done:]))
                estimates.append(predictor(name, one, done).tokens)
    assert spearman(truths, estimates) == pytest.approx(quality, abs=tolerance or 1e-9)


def test_a_perfect_predictor_tells_the_truth() -> None:
    workload = workload_of(SMALL, 1, None)
    one = workload.trajectory(3, 2)
    told = predictor_of(workload, 1.0)(rollout_id(group_id(AttemptId("att_1"), 3), 2), one, 4)
    assert told.tokens == told.tokens_q90 == sum(turn.output_tokens for turn in one.turns[4:])
    assert told.turns == len(one.turns) - 4
    assert told.tool_s == pytest.approx(sum(turn.tool_s for turn in one.turns[4:]))


def test_the_sample_is_large_enough_to_calibrate() -> None:
    assert len(sample_of(workload_of(SMALL, 1, None)).truths) > 1_000
