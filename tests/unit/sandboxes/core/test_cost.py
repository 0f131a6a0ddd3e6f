"""Three bills of one use, and the arithmetic that bounds a saving."""

import pytest

from sandboxes.core.cost import Prices, Usage, bill, saving, saving_ceiling
from sandboxes.core.names import GIB

PRICES = Prices(vcpu_s=0.000014, gib_s=0.0000045, source="hand", date="2026-01-01")


def test_the_declared_bill_is_the_published_one() -> None:
    hour = Usage(8 * 3600, 4 * GIB * 3600, 0, 0, 0, 0)
    assert bill(hour, PRICES).declared == pytest.approx(0.468)


def test_sharing_counts_a_template_once_and_use_counts_it_for_each_clone() -> None:
    use = Usage(0, 0, 100, 2 * GIB, 8 * GIB, GIB)
    told = bill(use, PRICES)
    assert told.used == pytest.approx(100 * 0.000014 + 10 * 0.0000045)
    assert told.shared == pytest.approx(100 * 0.000014 + 3 * 0.0000045)


def test_room_kept_free_is_paid_for() -> None:
    use = Usage(0, 0, 0, GIB, 0, 0)
    assert bill(use, PRICES, packing=0.5).used == pytest.approx(2 * bill(use, PRICES).used)


def test_usages_add_up_field_by_field() -> None:
    assert Usage(1, 2, 3, 4, 5, 6) + Usage(1, 1, 1, 1, 1, 1) == Usage(2, 3, 4, 5, 6, 7)


def test_a_saving_is_the_share_that_is_not_paid() -> None:
    assert saving(11.0, 100.0) == pytest.approx(0.89)


def test_eight_percent_of_use_bounds_the_saving() -> None:
    assert saving_ceiling(8.0, 100.0, 0.73) == pytest.approx(0.89, abs=0.001)
    assert saving_ceiling(8.0, 100.0, 0.9) == pytest.approx(0.911, abs=0.001)
