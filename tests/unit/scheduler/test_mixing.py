"""Mixing by weight: exact over a cycle, the same for a seed, known from the ordinal alone."""

from collections import Counter

import pytest

from domain.ids import GroupId
from scheduler.mixing import CYCLE, Source, drawn, mixed_sources, places
from scheduler.tasks import JobTasks, TaskBook, TaskLine

TWO = (Source(0, 3, 1.0), Source(3, 5, 3.0))


def book(sources: tuple[Source, ...] = TWO, seed: int = 7, shuffle: bool = True) -> JobTasks:
    """Eight tasks."""
    train = tuple(TaskLine(f"t{n}", "{}") for n in range(8))  # type: ignore[arg-type]
    return JobTasks(seed, (TaskBook(seed, shuffle, train, sources),))


def tasks(it: JobTasks, count: int, first: int = 0) -> list[str]:
    """Tasks of ordinals in order."""
    return [
        it.task(GroupId(f"grp_x_{ordinal:08d}")).task_id for ordinal in range(first, first + count)
    ]


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [((1.0, 3.0), (60, 180)), ((1.0, 1.0, 1.0), (80, 80, 80)), ((1.0, 1e6), (1, 239))],
)
def test_places_of_a_cycle_follow_the_weights(
    weights: tuple[float, ...], wanted: tuple[int, ...]
) -> None:
    given = places(tuple(Source(n, 1, weight) for n, weight in enumerate(weights)))
    assert given == wanted


def test_a_source_is_drawn_as_often_as_its_weight_says() -> None:
    counts = Counter(drawn(TWO, 7, ordinal)[0] for ordinal in range(10 * CYCLE))
    assert counts == {0: 600, 1: 1800}


def test_places_within_a_source_follow_one_another_without_gaps() -> None:
    for number in (0, 1):
        seen = [before for n, before in (drawn(TWO, 7, o) for o in range(3 * CYCLE)) if n == number]
        assert seen == list(range(len(seen)))


def test_each_epoch_of_a_source_has_every_task_once() -> None:
    order = tasks(book(), 4 * CYCLE)
    second = [task for task in order if task in {"t3", "t4", "t5", "t6", "t7"}]
    for epoch in range(len(second) // 5):
        assert len(set(second[5 * epoch : 5 * epoch + 5])) == 5


def test_the_order_depends_on_the_seed_and_on_nothing_else() -> None:
    assert tasks(book(), 500) == tasks(book(), 500)
    assert tasks(book(seed=8), 500) != tasks(book(), 500)


def test_a_job_that_goes_on_at_an_ordinal_takes_the_tasks_that_were_next() -> None:
    assert tasks(book(), 600)[377:] == tasks(book(), 600 - 377, first=377)


def test_without_shuffling_a_source_is_read_in_order() -> None:
    order = [task for task in tasks(book(shuffle=False), 40) if task in {"t0", "t1", "t2"}]
    assert order == [f"t{n % 3}" for n in range(len(order))]


def test_stored_sources_tile_the_list_and_empty_ones_take_no_part() -> None:
    stored = [
        {"name": "a", "count": 3, "weight": 1.0},
        {"name": "b", "count": 0, "weight": 9.0},
        {"name": "c", "count": 5, "weight": 3.0},
    ]
    assert mixed_sources(stored) == TWO
    assert mixed_sources(None) == ()


def test_a_single_source_keeps_the_order_of_a_plain_list() -> None:
    one = (Source(0, 8, 2.0),)
    assert tasks(book(one), 30) == tasks(book(()), 30)
