"""Histograms forget; growth begins with the declared ceiling and ends with what was seen."""

import pytest

from sandboxes.core.cpu import PRIOR_CORES, CpuModel, GroupCpu, pooled_cores
from sandboxes.core.growth import GROUPS_MIN, ROLLOUTS_MIN, GrowthModel, phase_of
from sandboxes.core.histogram import FACTOR, DecayingHistogram
from sandboxes.core.names import GIB, MIB


def taught(model: GrowthModel, peak_mib: int, rollouts: int, group_of: int = 4) -> GrowthModel:
    for index in range(rollouts):
        model.turn_ended(1, peak_mib * MIB)
        model.rollout_ended(is_last_of_group=(index + 1) % group_of == 0)
    return model


def test_quantiles_are_at_most_one_bucket_too_high() -> None:
    histogram = DecayingHistogram(1e9)
    for value in range(1, 101):
        histogram.add(value * MIB)
    for level in (0.5, 0.9, 1.0):
        exact = level * 100 * MIB
        assert exact * (1 - 1e-9) <= histogram.quantile(level) <= exact * FACTOR
    assert histogram.mean == pytest.approx(50.5 * MIB)


def test_old_samples_weigh_half_after_a_half_life() -> None:
    histogram = DecayingHistogram(half_life=1.0)
    histogram.add(30 * MIB)
    histogram.add(60 * MIB)
    assert histogram.mean == pytest.approx(50 * MIB)


def test_weights_stay_finite_over_many_half_lives() -> None:
    histogram = DecayingHistogram(half_life=1.0)
    for _ in range(5_000):
        histogram.add(10 * MIB)
    assert histogram.mean == pytest.approx(10 * MIB)
    assert histogram.deviation == pytest.approx(0, abs=1_000)


def test_an_empty_histogram_says_nothing() -> None:
    histogram = DecayingHistogram(1.0)
    assert (histogram.is_empty, histogram.mean, histogram.quantile(0.9)) == (True, 0.0, 0.0)


def test_phases_double_in_length() -> None:
    assert [phase_of(turn) for turn in (0, 1, 2, 3, 4, 31, 32, 500)] == [0, 1, 2, 2, 3, 5, 6, 6]


def test_without_evidence_a_quarter_of_the_ceiling_is_expected() -> None:
    growth = GrowthModel(2 * GIB).growth(0)
    assert growth.expected_bytes == growth.deviation_bytes == GIB / 2
    assert growth.reserve_bytes == GIB


def test_twenty_rollouts_of_several_tasks_put_the_prior_out() -> None:
    model = taught(GrowthModel(2 * GIB), 200, ROLLOUTS_MIN)
    assert model.evidence == 1.0
    assert model.growth(0).expected_bytes == pytest.approx(200 * MIB)
    assert model.growth(0).deviation_bytes == pytest.approx(0, abs=MIB)


def test_twenty_rollouts_of_one_task_are_not_enough() -> None:
    model = taught(GrowthModel(2 * GIB), 200, ROLLOUTS_MIN, group_of=ROLLOUTS_MIN)
    assert model.evidence == 1 / GROUPS_MIN
    assert model.growth(0).expected_bytes > 400 * MIB


def test_later_turns_count_for_a_fresh_sandbox_and_earlier_ones_not_for_an_old_one() -> None:
    model = GrowthModel(2 * GIB)
    for _ in range(30):
        model.turn_ended(0, 10 * MIB)
        model.turn_ended(9, 300 * MIB)
        model.rollout_ended(is_last_of_group=True)
    assert model.growth(0).expected_bytes == pytest.approx(155 * MIB, rel=0.01)
    assert model.growth(0).deviation_bytes == pytest.approx(145 * MIB, rel=0.01)
    assert model.growth(4).expected_bytes == pytest.approx(300 * MIB)


def test_nothing_is_expected_beyond_the_ceiling() -> None:
    model = GrowthModel(64 * MIB)
    assert model.growth(3).reserve_bytes <= 64 * MIB


def test_cpu_begins_at_eight_sandboxes_a_core() -> None:
    model = CpuModel()
    assert model.expected_cores == PRIOR_CORES
    for _ in range(400):
        model.rollout_ended(360.0, 0.5, 0.3)
    assert model.expected_cores == pytest.approx(0.5, abs=0.02)


def test_a_long_life_weighs_more_than_a_short_one() -> None:
    short, long = CpuModel(), CpuModel()
    short.rollout_ended(10.0, 1.0, 1.0)
    long.rollout_ended(7_200.0, 1.0, 1.0)
    assert short.expected_cores < 0.13
    assert long.expected_cores == pytest.approx(0.57, abs=0.01)


def test_cores_pool_between_groups_and_add_up_within_one() -> None:
    together = pooled_cores([GroupCpu(16, 0.1, 0.2)])
    apart = pooled_cores([GroupCpu(1, 0.1, 0.2)] * 16)
    assert together == pytest.approx(1.6 + 3.2)
    assert apart == pytest.approx(1.6 + 0.8)
