"""One run: what a record says of it."""

import pytest

from benchmarks.schedule.cases import VENUS, main_entry
from benchmarks.schedule.run import run_case
from domain.plan import StrategyName
from tests.unit.benchmarks.schedule.small import SMALL, case


@pytest.mark.parametrize("tier", [False, True])
def test_a_run_is_above_its_bound_and_trains_every_group_once(tier: bool) -> None:
    record = run_case(case(tier=tier), None, SMALL)
    assert record.ratio > 1.0
    assert sum(record.staleness.values()) == 2 * SMALL.groups_per_batch
    assert record.stalest <= SMALL.max_staleness
    assert record.dropped == {}
    assert record.source == "fitted:swe_glm"
    assert 0.0 < record.busy_share <= 1.0
    assert 0.0 < record.hit_rate <= 1.0


def test_a_case_gives_the_same_record_again() -> None:
    first, second = (run_case(case(), None, SMALL) for _ in range(2))
    assert (first.step_s, first.events, first.wait_s) == (
        second.step_s,
        second.events,
        second.wait_s,
    )


def test_a_synchronous_run_trains_on_the_newest_weights_alone() -> None:
    record = run_case(case(main_entry(StrategyName.SLIME_SYNC, SMALL)), None, SMALL)
    assert record.staleness == {"0": 2 * SMALL.groups_per_batch}
    assert (record.async_ratio, record.max_staleness) == (1.0, 0)


def test_every_strategy_does_the_same_work() -> None:
    ours = run_case(case(VENUS), None, SMALL)
    theirs = run_case(case(main_entry(StrategyName.TTL, SMALL)), None, SMALL)
    assert ours.bound_s == theirs.bound_s
    assert ours.sampled_tokens - ours.wasted_tokens == theirs.sampled_tokens - theirs.wasted_tokens
