"""Aggregate capacity rules of other systems."""

from scheduler.core.strategies.capacity import SKYRL_WORKERS, areal_slots, skyrl_slots


def test_areal_with_eta_two_starts_192_at_version_zero_and_256_at_one() -> None:
    assert areal_slots(0, 64, (0, 0), eta=2) == 192
    assert areal_slots(1, 64, (0, 0), eta=2) == 256


def test_areal_counts_what_was_accepted_and_what_runs() -> None:
    assert areal_slots(1, 64, (64, 100), eta=2) == 92
    assert areal_slots(1, 64, (64, 100), eta=2, running_max=128) == 28


def test_areal_is_synchronous_by_default() -> None:
    assert areal_slots(0, 64, (0, 0)) == 64


def test_skyrl_starts_320_before_the_first_step() -> None:
    assert skyrl_slots(1, 64, (0, 0), max_staleness=4) == 320


def test_skyrl_never_runs_more_than_its_workers() -> None:
    assert skyrl_slots(100, 64, (5000, 700)) == SKYRL_WORKERS - 700
