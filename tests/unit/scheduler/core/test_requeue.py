"""A dropped task comes back as a repeat."""

import pytest

from domain.commands import DropGroup, OpenGroup
from domain.ids import (
    EVALUATION_ORDINAL_BASE,
    REPEAT_SPAN,
    REPEATS_MAX,
    group_id,
    repeat_of,
    task_ordinal,
)
from domain.states import DropReason
from scheduler.core.requeue import drop_and_queue_again, lag
from scheduler.core.state import Pass
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench


def drop(bench: Bench, ordinal: int) -> Pass:
    run = Pass(state=bench.core.state, now=bench.now)
    drop_and_queue_again(run, bench.job(), bench.group(ordinal), "test")
    return run


def test_a_repeat_names_the_same_task() -> None:
    ordinal = 7
    for _ in range(REPEATS_MAX):
        repeat = repeat_of(ordinal)
        assert repeat is not None
        assert task_ordinal(repeat) == 7
        assert ordinal < repeat < EVALUATION_ORDINAL_BASE
        ordinal = repeat
    assert repeat_of(ordinal) is None


def test_the_repeat_is_the_next_group_that_opens() -> None:
    bench = Bench.running(plan(groups_per_batch=2, async_ratio=1.0, max_steps=9))
    drop(bench, 0)
    bench.tick()
    assert [command.ordinal for command in bench.found(OpenGroup)] == [REPEAT_SPAN]


def test_an_unfinished_group_is_unsalvageable_and_a_complete_one_stale() -> None:
    bench = Bench.running(plan(groups_per_batch=1, async_ratio=3.0, max_staleness=2, max_steps=9))
    bench.play(bench.group(0))
    bench.play(bench.group(1))
    reasons = [
        command.reason
        for ordinal in (1, 2)
        for command in drop(bench, ordinal).commands
        if isinstance(command, DropGroup)
    ]
    assert reasons == [DropReason.STALE, DropReason.UNSALVAGEABLE]


def test_a_group_with_a_position_is_never_dropped_so() -> None:
    bench = Bench.running(plan(max_steps=9))
    bench.play(bench.group(0))
    with pytest.raises(AssertionError):
        drop(bench, 0)


def test_the_checkpoint_of_a_queued_repeat_holds_it() -> None:
    bench = Bench.running(plan(max_steps=9))
    drop(bench, 0)
    assert REPEAT_SPAN in bench.core.data_position(plan().attempt_id)[1]


def test_a_group_without_tokens_does_not_lag() -> None:
    bench = Bench.running(plan(max_steps=9))
    bench.job().committed = 3
    assert lag(bench.job(), bench.group(0)) == 0
    bench.rollout(0).oldest_version = 1
    assert lag(bench.job(), bench.group(0)) == 2


def test_ids_of_repeats_are_of_the_same_attempt() -> None:
    assert group_id(plan().attempt_id, REPEAT_SPAN).endswith(f"_{REPEAT_SPAN:09d}")
