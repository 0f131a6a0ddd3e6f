"""prime-rl's controller on its own."""

from scheduler.core.strategies.concurrency import Controller, EngineLoad, Limits, load_of

CLEAR = EngineLoad(usage=0.5, running=10)
QUEUED = EngineLoad(usage=0.5, running=10, waiting=6)
PREEMPTED = EngineLoad(usage=0.5, running=10, preempted=1)


def controller(cap: float = 100.0) -> Controller:
    return Controller(Limits(), cap)


def test_one_turnover_of_what_is_in_flight_grows_the_cap_by_a_quarter() -> None:
    one = controller()
    one.observe([CLEAR], 100)
    turned = 0.0
    while turned < 1.0:
        turned += 1.0 / one.in_flight_max
        one.record_finished(one.in_flight_max)
    assert one.in_flight_max == 125


def test_a_cap_that_does_not_bind_does_not_grow() -> None:
    one = controller()
    one.observe([CLEAR], 80)
    one.record_finished(80)
    assert one.cap == 100.0


def test_above_sixty_percent_or_with_a_queue_the_cap_does_not_grow() -> None:
    for load in (EngineLoad(0.65, 10), EngineLoad(0.5, 10, waiting=1)):
        one = controller()
        one.observe([load], 100)
        one.record_finished(100)
        assert one.cap == 100.0


def test_a_soft_trim_lowers_the_cap_and_cancels_nothing() -> None:
    one = controller()
    assert one.observe([EngineLoad(0.84, 50)], 96) == 0
    assert one.in_flight_max == int(96 * 0.7 / 0.84)


def test_a_hard_trim_cancels_the_excess() -> None:
    one = controller()
    excess = one.observe([EngineLoad(1.0, 50)], 100)
    assert (one.in_flight_max, excess) == (70, 30)


def test_the_next_trim_waits_six_polls() -> None:
    one = controller()
    caps = []
    for in_flight in (96, 60, 60, 60, 60, 60, 60):
        one.observe([EngineLoad(0.84, 50)], in_flight)
        caps.append(one.in_flight_max)
    assert caps == [79, 79, 79, 79, 79, 79, 50]


def test_a_queue_cuts_to_nine_tenths_at_its_sixth_poll() -> None:
    one = controller()
    assert [one.observe([QUEUED], 100) for _ in range(5)] == [0] * 5
    assert one.observe([QUEUED], 100) == 10
    assert one.in_flight_max == 90


def test_a_short_queue_in_between_starts_the_count_anew() -> None:
    one = controller()
    for load in (*[QUEUED] * 5, CLEAR, *[QUEUED] * 5):
        assert one.observe([load], 100) == 0
    assert one.cap == 100.0


def test_a_preemption_cuts_to_four_fifths() -> None:
    one = controller()
    assert one.observe([PREEMPTED], 100) == 20
    assert one.in_flight_max == 80


def test_cuts_rest_until_the_pool_has_drained() -> None:
    one = controller()
    one.observe([PREEMPTED], 100)
    assert one.observe([PREEMPTED], 95) == 0
    assert one.in_flight_max == 80


def test_a_cut_soon_after_a_drain_halves() -> None:
    one = controller()
    one.observe([PREEMPTED], 100)
    one.observe([CLEAR], 80)
    assert one.observe([PREEMPTED], 80) == 40
    assert one.in_flight_max == 40


def test_a_cut_long_after_a_drain_is_a_first_one_again() -> None:
    one = controller()
    one.observe([PREEMPTED], 100)
    for _ in range(8):
        one.observe([CLEAR], 80)
    one.observe([PREEMPTED], 80)
    assert one.in_flight_max == 64


def test_the_cap_stays_between_its_floor_and_its_ceiling() -> None:
    one = controller(1024.0)
    one.observe([CLEAR], 1024)
    one.record_finished(1024)
    assert one.in_flight_max == 1024
    one.observe([PREEMPTED], 4)
    assert one.in_flight_max == 8


def test_without_a_poll_nothing_changes() -> None:
    one = controller()
    assert one.observe([], 100) == 0
    assert one.cap == 100.0


def test_what_fits_runs_and_the_rest_waits() -> None:
    assert load_of([40, 40, 40], 100, 8) == EngineLoad(0.8, 2, 1)
    assert load_of([10, 10, 10], 100, 2) == EngineLoad(0.2, 2, 1)
    assert load_of([], 100, 8) == EngineLoad(0.0, 0, 0)
