"""What a gap is expected to last, and what its room is worth meanwhile."""

import pytest

from kv.gaps import PREFILL_FACTOR, RELOAD_FACTOR, is_worth_keeping, return_cost_s, room_value


@pytest.mark.parametrize("active_share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("full_step_s", [0.0, 0.4])
def test_room_is_worth_nothing_where_a_step_has_no_floor(
    full_step_s: float, active_share: float
) -> None:
    assert room_value(0.0, full_step_s, active_share) == 0.0


def test_room_is_worth_less_the_more_of_it_is_in_use() -> None:
    values = [room_value(0.1, 0.3, share) for share in (0.0, 0.5, 1.0)]
    assert values == [pytest.approx(3.0), pytest.approx(0.75), pytest.approx(1 / 3)]


def test_a_return_costs_the_cheaper_way_and_a_reload_less_than_as_long_a_prefill() -> None:
    assert return_cost_s(2.0, None) == PREFILL_FACTOR * 2.0
    assert return_cost_s(2.0, 2.5) == PREFILL_FACTOR * 2.0
    assert return_cost_s(2.0, 1.9) == RELOAD_FACTOR * 1.9
    assert RELOAD_FACTOR < PREFILL_FACTOR


def test_pages_stay_exactly_as_long_as_their_room_is_worth_no_more_than_their_return() -> None:
    # A tenth of the device for ten seconds, room worth half: half an engine second.
    assert is_worth_keeping(10.0, 0.1, 0.5, 0.5)
    assert not is_worth_keeping(10.0, 0.1, 0.5, 0.499)
