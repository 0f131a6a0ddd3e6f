"""When one more training group may start."""

import pytest

from domain.commands import OpenGroup
from domain.events import JobSubmitted
from scheduler.core import pacing
from scheduler.core.state import Pass
from tests.simulation.plans import plan, pool
from tests.unit.scheduler.core.bench import Bench


@pytest.mark.parametrize(
    ("staleness", "ratio", "expected"),
    [(0, 1.0, 2), (0, 9.0, 2), (1, 1.5, 3), (1, 9.0, 4), (2, 9.0, 6)],
)
def test_groups_start_within_both_bounds(staleness: int, ratio: float, expected: int) -> None:
    bench = Bench.running(plan(max_staleness=staleness, async_ratio=ratio, max_steps=9))
    assert len(bench.opened()) == expected


def test_no_group_is_opened_that_no_planned_step_could_train() -> None:
    bench = Bench.running(plan(max_staleness=5, async_ratio=9.0, max_steps=2))
    assert len(bench.opened()) == 4


def test_a_committed_step_lets_as_many_groups_start_as_it_consumed() -> None:
    bench = Bench.running(plan(max_staleness=1, async_ratio=9.0, max_steps=9))
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    assert len(bench.opened()) == 4
    bench.commit(1)
    assert len(bench.opened()) == 4, "no engine serves the new policy yet"
    bench.synced(plan(), 0, 1)
    assert len(bench.opened()) == 6


def test_a_dropped_group_is_refilled() -> None:
    bench = Bench.running(plan(max_staleness=0))
    bench.play(bench.group(0), flat=True)
    assert [command.ordinal for command in bench.opened()] == [0, 1, 2]


def test_ordinals_of_a_checkpoint_come_first_and_each_once() -> None:
    bench = Bench()
    bench.node()
    job = plan(max_staleness=1, async_ratio=9.0)
    bench.feed(JobSubmitted(job, 1, 2, 20, (17, 11)))
    bench.trainer(job, version=2)
    bench.engine(job)
    bench.synced(job, 0, 2)
    assert [command.ordinal for command in bench.opened()] == [11, 17, 20, 21]


def test_the_data_position_lists_what_was_issued_and_not_consumed() -> None:
    bench = Bench.running(plan(max_staleness=1, async_ratio=9.0, max_steps=9))
    for ordinal in (1, 2):
        bench.play(bench.group(ordinal))
    bench.commit(1)
    assert bench.core.data_position(plan().attempt_id) == (4, (0, 3))


def test_groups_wait_for_room_for_all_their_sandboxes() -> None:
    bench = Bench.running(plan(group_size=2), pool=pool(sandboxes=4, grading_reserve=1))
    assert len(bench.opened()) == 1
    assert bench.found(OpenGroup, bench.play(bench.group(0))) == []
    assert len(bench.opened()) == 2


def test_nothing_starts_without_an_engine_that_has_weights() -> None:
    assert pacing.newest_version([]) == -1
    bench = Bench.running()
    assert not pacing.may_open(Pass(bench.core.state, 0.0), bench.job(), -1)
