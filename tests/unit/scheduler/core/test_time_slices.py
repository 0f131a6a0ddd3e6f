"""Slices of whole engines between full-weight jobs."""

import pytest

from domain.ids import JobId
from scheduler.core.time_slices import SWITCH_SHARE, TURNS_PER_SLICE, Rotation, Switch, slices

A, B, C = (JobId(f"job_{name}") for name in "abc")
SWITCH = Switch(weight_bytes=10.0, link_bytes_per_s=1.0, fixed_s=2.0, drain_s=6.0)


def rotation(longest_turn_s: float = 5.0, **weights: float) -> Rotation:
    found = Rotation(SWITCH, longest_turn_s)
    for job in (A, B, C):
        found.join(job, weights.get(job[-1], 1.0))
        found.wait(job)
    return found


def test_a_swap_costs_the_transfer_and_the_fixed_part_and_half_of_the_drain_is_lost() -> None:
    assert SWITCH.swap_s == 12.0
    assert SWITCH.total_s == 15.0


def test_slices_are_in_the_ratio_of_the_weights_and_switching_costs_its_share() -> None:
    found = slices({A: 1.0, B: 2.0, C: 5.0}, SWITCH, longest_turn_s=1.0)
    assert found[B] == pytest.approx(2 * found[A])
    assert found[C] == pytest.approx(5 * found[A])
    assert 3 * SWITCH.total_s / sum(found.values()) == pytest.approx(SWITCH_SHARE)


def test_the_lightest_slice_holds_some_longest_turns() -> None:
    found = slices({A: 1.0, B: 99.0}, Switch(0.0, 1.0), longest_turn_s=7.0)
    assert found[A] == pytest.approx(TURNS_PER_SLICE * 7.0)
    assert slices({}, SWITCH, 1.0) == {}


def test_slices_come_in_the_order_of_ids_and_begin_again() -> None:
    turns, order = rotation(), []
    for now in range(5):
        job = turns.next_job()
        assert job is not None
        turns.switch_to(job, float(now))
        order.append(job)
    assert order == [A, B, C, A, B]


def test_a_slice_is_over_after_its_length_and_not_before() -> None:
    turns = rotation()
    assert turns.is_over(0.0)
    assert turns.switch_to(A, 0.0) == SWITCH.swap_s
    assert turns.current is not None
    length = turns.current.length_s
    assert not turns.is_over(length - 0.1)
    assert turns.is_over(length)


def test_nobody_is_switched_out_for_an_engine_that_nobody_wants() -> None:
    turns = rotation()
    turns.switch_to(A, 0.0)
    for job in (B, C):
        turns.rest(job)
    assert not turns.is_over(1e6)
    turns.wait(B)
    assert turns.is_over(1e6)


def test_a_job_without_turns_gives_way_at_once() -> None:
    turns = rotation()
    turns.switch_to(A, 0.0)
    turns.rest(A)
    assert turns.is_over(1.0)


def test_a_turn_too_long_is_taken_back_from_the_next_slice() -> None:
    turns = rotation()
    turns.switch_to(A, 0.0)
    assert turns.current is not None
    planned = turns.current.length_s
    turns.switch_to(B, planned + 4.0)
    turns.switch_to(A, planned + 500.0)
    assert turns.current.length_s == pytest.approx(planned - 4.0)


def test_what_was_lent_beyond_a_slice_is_taken_back_only_up_to_a_turn_and_its_drain() -> None:
    turns = rotation()
    turns.switch_to(A, 0.0)
    assert turns.current is not None
    planned = turns.current.length_s
    turns.switch_to(B, planned + 10_000.0)
    turns.switch_to(A, planned + 20_000.0)
    assert turns.current.length_s == pytest.approx(planned - 5.0 - SWITCH.drain_s)


def test_a_job_that_rests_is_owed_nothing_afterwards() -> None:
    turns = rotation()
    turns.switch_to(A, 0.0)
    assert turns.current is not None
    planned = turns.current.length_s
    turns.rest(A)
    turns.switch_to(B, 1.0)
    turns.wait(A)
    turns.switch_to(A, 2.0)
    assert turns.current.length_s == pytest.approx(planned)


def test_a_slice_always_holds_the_swap_and_one_turn() -> None:
    turns = rotation(longest_turn_s=1000.0, a=0.001)
    turns.switch_to(A, 0.0)
    turns.switch_to(B, 5000.0)
    turns.switch_to(A, 5001.0)
    assert turns.current is not None
    assert turns.current.length_s >= SWITCH.swap_s + 1000.0


def test_a_job_that_left_takes_no_part() -> None:
    turns = rotation()
    turns.switch_to(A, 0.0)
    turns.leave(A)
    assert turns.current is None
    assert turns.next_job() == B
    turns.leave(B)
    assert turns.waiting() == [C]
