"""Costs of the modelled engine, computed by hand."""

import pytest

from simulation.physics import EnginePhysics, prefill_steps
from tests.unit.simulation.machines import physics


def test_a_decode_step_reads_the_weights_and_the_kv_that_is_held() -> None:
    assert physics().step_floor_s == 2.0
    assert physics().decode_step_s(50) == 2.5


def test_steps_on_end_cost_what_they_cost_one_by_one() -> None:
    held = [7 + 3 * step for step in range(5)]
    one_by_one = sum(physics().decode_step_s(tokens) for tokens in held)
    assert physics().decode_steps_s(7, 3, 5) == pytest.approx(one_by_one)


def test_no_steps_cost_nothing() -> None:
    assert physics().decode_steps_s(1_000, 8, 0) == 0


def test_prefill_costs_two_operations_a_parameter_and_four_a_token_attended_to() -> None:
    assert physics().prefill_s(10, 25) == 10 * (100 + 4 * 25) / 100


def test_prefill_costs_the_same_however_it_is_cut() -> None:
    engine = physics()
    whole = engine.prefill_after_s(100, 40)
    cut = engine.prefill_after_s(70, 40) + engine.prefill_after_s(30, 110)
    assert cut == pytest.approx(whole)


def test_a_prompt_takes_one_step_for_every_2048_tokens_begun() -> None:
    assert [prefill_steps(tokens) for tokens in (0, 1, 2_048, 2_049, 4_096)] == [0, 1, 1, 2, 2]


def test_kv_moves_at_the_speed_of_its_link() -> None:
    engine = physics()
    assert (engine.reload_s(100), engine.transfer_s(100), engine.disk_s(100)) == (2.0, 4.0, 10.0)


def test_one_turn_on_an_h100_costs_the_seconds_of_the_formula() -> None:
    """2,000 tokens of prompt, 100 of output: one prefill step and 100 decode steps."""
    h100 = EnginePhysics(
        weights_bytes=16.4e9, kv_bytes_per_token=147_456, bandwidth=3.35e12 * 0.7,
        step_overhead_s=0.003, kv_capacity_tokens=366_000, parameters=8.2e9, layers=36,
        width=4_096, prefill_flops=494e12, slots=256, host_link_bytes_s=50e9,
        network_bytes_s=25e9, disk_bytes_s=5e9, host_tier_tokens=4 * 366_000,
    )  # fmt: skip
    floor_s = 16.4e9 / 2.345e12 + 0.003
    prefill_s = 2_000 * (2 * 8.2e9 + 4 * 36 * 4_096 * 1_000) / 494e12
    read_s = sum(2_000 + i - 1 for i in range(1, 101)) * 147_456 / 2.345e12
    spent_s = (
        h100.step_floor_s + h100.prefill_after_s(2_000, 0) + h100.decode_steps_s(2_000, 1, 100)
    )
    assert spent_s == pytest.approx(101 * floor_s + prefill_s + read_s)
    assert spent_s == pytest.approx(1.0910, abs=1e-4)
