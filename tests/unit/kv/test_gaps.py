"""What a gap is expected to last, and what its room is worth meanwhile."""

import pytest

from kv.gaps import room_value


@pytest.mark.parametrize("active_share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("full_step_s", [0.0, 0.4])
def test_room_is_worth_nothing_where_a_step_has_no_floor(
    full_step_s: float, active_share: float
) -> None:
    assert room_value(0.0, full_step_s, active_share) == 0.0


def test_room_is_worth_less_the_more_of_it_is_in_use() -> None:
    values = [room_value(0.1, 0.3, share) for share in (0.0, 0.5, 1.0)]
    assert values == [pytest.approx(3.0), pytest.approx(0.75), pytest.approx(1 / 3)]
