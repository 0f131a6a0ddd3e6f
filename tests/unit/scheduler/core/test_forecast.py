"""When a waiting job will start, from the pace of those that run."""

import pytest

from domain.ids import JobId
from scheduler.core.forecast import NO_START, Holder, Pace, Start, starts

A, B, C, D = (JobId(f"job_{name}") for name in "abcd")


def one_at_a_time(job: JobId, holding: tuple[JobId, ...]) -> bool:
    return not holding


def test_a_pace_is_the_mean_of_the_last_steps() -> None:
    pace = Pace()
    for now in (0.0, 10.0, 30.0):
        pace.note_step(now)
    assert pace.step_s == 15.0
    assert pace.remaining_s(2, now=35.0) == 25.0


def test_a_step_that_is_late_counts_as_a_whole_one_at_most() -> None:
    pace = Pace()
    pace.note_step(0.0)
    pace.note_step(10.0)
    assert pace.remaining_s(2, now=500.0) == 10.0


def test_before_two_commits_nothing_is_known() -> None:
    pace = Pace()
    assert pace.remaining_s(1, 5.0) is None
    pace.note_step(1.0)
    assert pace.remaining_s(1, 5.0) is None
    assert pace.remaining_s(0, 5.0) == 0.0


def test_a_pause_is_no_step_and_the_pace_is_kept_over_it() -> None:
    pace = Pace()
    pace.note_step(0.0)
    pace.note_step(10.0)
    pace.stop()
    pace.note_step(1000.0)
    assert pace.step_s == 10.0
    pace.note_step(1020.0)
    assert pace.step_s == 20.0


def test_each_job_starts_when_the_one_before_it_ends() -> None:
    found = starts([(B, 20.0), (C, None)], [Holder(A, 50.0)], 10.0, one_at_a_time)
    assert found == {B: Start(50.0), C: Start(70.0)}


def test_a_job_that_fits_starts_now() -> None:
    assert starts([(B, None)], [], 10.0, one_at_a_time) == {B: Start(10.0)}


def test_no_job_starts_before_the_one_that_it_waits_behind() -> None:
    def fits(job: JobId, holding: tuple[JobId, ...]) -> bool:
        return job == C or A not in holding

    found = starts([(B, None), (C, None)], [Holder(A, 50.0)], 0.0, fits)
    assert (found[B].at, found[C].at) == (50.0, 50.0)


def test_what_nobody_measured_is_not_guessed() -> None:
    holders = [Holder(A, 50.0), Holder(D, None)]
    found = starts([(B, 5.0), (C, 5.0)], holders, 0.0, one_at_a_time)
    reason = "no step of job_d has been measured yet"
    assert found == {B: Start(None, reason), C: Start(None, reason)}


def test_the_end_of_an_unmeasured_job_in_the_line_is_unknown_to_those_behind_it() -> None:
    found = starts([(B, None), (C, 5.0)], [Holder(A, 50.0)], 0.0, one_at_a_time)
    assert found[B] == Start(50.0)
    assert found[C] == Start(None, "no step of job_b has been measured yet")


@pytest.mark.parametrize(
    ("at", "says"), [(100.0, False), (159.0, False), (161.0, True), (None, True)]
)
def test_a_forecast_is_said_again_when_it_moved_by_more_than_a_minute(
    at: float | None, says: bool
) -> None:
    assert Start(at).moved(Start(100.0), now=0.0) is says


def test_a_far_forecast_may_move_by_a_tenth() -> None:
    assert not Start(10_900.0).moved(Start(10_000.0), now=0.0)
    assert Start(11_100.0).moved(Start(10_000.0), now=0.0)
    assert Start(None, "why").moved(NO_START, now=0.0)
