"""Figures of a recorded run, by hand."""

import pytest

from benchmarks.e2e import measures
from benchmarks.e2e.measures import Member
from benchmarks.e2e.records import work_digest
from tests.unit.benchmarks.e2e.small import job

SPAN_S = 19.0
"""From the first group's opening to the second commit."""


def test_a_step_counts_from_the_first_opening_and_later_ones_from_the_first_commit() -> None:
    assert measures.step_s(job()) == SPAN_S / 2
    assert measures.later_step_s(job()) == 10.0


def test_a_group_takes_the_pages_of_its_mean_contexts_with_its_prompt_once() -> None:
    # Contexts of 48 and 96 tokens: 72 on average, 32 of them shared by two members.
    assert measures.mean_group_pages(job().groups) == pytest.approx((32 + 40 + 40) / 16)


def test_pressure_is_what_all_allowed_groups_want_over_the_pages_of_all_engines() -> None:
    assert measures.pressure(job().groups, 6, 7, 2) == pytest.approx(6 * 7.0 / 14)


def test_demand_is_what_was_in_flight_averaged_over_the_run() -> None:
    # Four rollouts of 4 s each with 72 tokens.
    assert measures.demand(job(), 10) == pytest.approx(4 * 4.0 * 4.5 / (SPAN_S * 10))


def test_the_most_that_had_a_place_at_once_are_those_of_one_group() -> None:
    # Each group ends before the other one begins.
    assert measures.live_max(job()) == 2


def test_slots_generate_for_the_seconds_of_all_turns() -> None:
    assert measures.generating_share(job()) == pytest.approx(4 * 2.0 / (SPAN_S * 4))


def test_waits_are_slot_time_and_unknown_ones_are_like_the_known() -> None:
    known = [(1.0, 1.5), (2.0, 1.0)]
    assert measures.waiting_share(known, 2, job()) == pytest.approx(0.5 / (SPAN_S * 4))
    assert measures.waiting_share(known, 6, job()) == pytest.approx(1.5 / (SPAN_S * 4))
    assert measures.waiting_share([], 6, job()) == 0.0


def test_work_is_equal_in_any_order_and_other_for_another_length() -> None:
    one, two = Member("a", 0, 2, 96, 32), Member("a", 1, 2, 96, 32)
    longer = Member("a", 1, 3, 140, 48)
    assert work_digest((one, two)) == work_digest((two, one))
    assert work_digest((one, two)) != work_digest((one, longer))
    assert measures.same_share((one, two), (one, longer)) == 0.5
