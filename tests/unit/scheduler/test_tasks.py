"""Which environment and task a group has: known from its ordinal alone."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from domain.ids import (
    EVALUATION_ORDINAL_BASE,
    EVALUATION_ORDINALS_PER_STEP,
    AttemptId,
    TaskId,
    group_id,
    repeat_of,
)
from scheduler.mixing import CYCLE
from scheduler.spec import evaluated_size, read_spec
from scheduler.tasks import JobTasks, TaskBook, TaskLine, turns

ATTEMPT = AttemptId("att_a")


def lines(prefix: str, count: int) -> tuple[TaskLine, ...]:
    """Tasks with numbered ids."""
    return tuple(TaskLine(TaskId(f"{prefix}{n}"), "{}") for n in range(count))


def job(train: tuple[int, ...] = (5,), test: tuple[int, ...] = (3,)) -> JobTasks:
    """Environments with so many tasks; the second weighs three times as much as the first."""
    books = tuple(
        TaskBook(7 if n == 0 else f"7/{n}", shuffle=True, tasks=lines(f"t{n}-", count))
        for n, count in enumerate(train)
    )
    tested = tuple(lines(f"e{n}-", count) for n, count in enumerate(test))
    return JobTasks(7, books, tested, tuple(3.0**n for n in range(len(train))))


def evaluated(tasks: JobTasks, step: int, count: int) -> list[tuple[int, str]]:
    """Environment and task of the first groups of an evaluation."""
    first = EVALUATION_ORDINAL_BASE + step * EVALUATION_ORDINALS_PER_STEP
    groups = [group_id(ATTEMPT, first + n) for n in range(count)]
    return [(tasks.environment(group), str(tasks.task(group).task_id)) for group in groups]


def trained(tasks: JobTasks, count: int) -> list[tuple[int, str]]:
    """Environment and task of the first training groups."""
    groups = [group_id(ATTEMPT, n) for n in range(count)]
    return [(tasks.environment(group), str(tasks.task(group).task_id)) for group in groups]


def test_one_environment_has_every_evaluation_group_in_the_order_of_its_split() -> None:
    assert [task for _, task in evaluated(job(), 2, 5)] == ["e0-0", "e0-1", "e0-2", "e0-0", "e0-1"]


def test_environments_take_turns_so_that_an_evaluation_cut_short_has_some_of_each() -> None:
    found = evaluated(job(test=(3, 2)), 0, 5)
    assert found == [(0, "e0-0"), (1, "e1-0"), (0, "e0-1"), (1, "e1-1"), (0, "e0-2")]
    assert evaluated(job(test=(3, 2)), 9, 5) == found


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_every_task_of_every_environment_has_one_group(sizes: list[int]) -> None:
    order = turns(tuple(sizes))
    assert sorted(order) == [(e, n) for e, size in enumerate(sizes) for n in range(size)]


def test_a_split_with_fewer_tasks_than_are_asked_for_has_each_once() -> None:
    spec = read_spec(
        {
            "seed": 0,
            "environments": [{"ref": "a@1"}, {"ref": "b@1", "name": "b"}],
            "rollout": {"group_size": 2, "groups_per_batch": 1},
            "scheduling": {"max_staleness": 0, "order": "oldest", "async_ratio": 1.0},
            "evaluation": {"tasks": 200},
            "checkpoints": {"every_steps": 1},
            "resources": {"rollout_gpus": {"min": 1, "max": 1}},
            "stop": {"max_steps": 1},
        }
    )
    counts = [evaluated_size(spec, stored, spec.environments[0]) for stored in (
        {"count": 25}, {"count": 300}, None,
    )]  # fmt: skip
    assert counts == [25, 200, 200]


def test_environments_to_train_on_share_the_groups_by_weight() -> None:
    found = trained(job(train=(5, 4)), 4 * CYCLE)
    assert Counter(environment for environment, _ in found) == {0: CYCLE, 1: 3 * CYCLE}


def test_each_environment_goes_through_epochs_of_its_own() -> None:
    found = [task for environment, task in trained(job(train=(5, 4)), CYCLE) if environment == 1]
    for epoch in range(len(found) // 4):
        assert set(found[4 * epoch : 4 * epoch + 4]) == {f"t1-{n}" for n in range(4)}


def test_one_environment_draws_as_if_there_were_no_others() -> None:
    alone = TaskBook(7, shuffle=True, tasks=lines("t0-", 5))
    assert [task for _, task in trained(job(), 40)] == [str(alone.at(n).task_id) for n in range(40)]


def test_a_repeat_of_an_ordinal_has_its_environment_and_its_task() -> None:
    tasks = job(train=(5, 4))
    for ordinal in range(20):
        repeat = repeat_of(ordinal)
        assert repeat is not None
        first, again = group_id(ATTEMPT, ordinal), group_id(ATTEMPT, repeat)
        assert tasks.environment(again) == tasks.environment(first)
        assert tasks.task(again) == tasks.task(first)


def test_a_task_has_one_number_in_all_epochs_and_repeats() -> None:
    tasks = job(train=(5,))
    numbers = [tasks.number(group_id(ATTEMPT, n)) for n in range(15)]
    by_task: dict[str, set[int | None]] = {}
    for (_, task), number in zip(trained(tasks, 15), numbers, strict=True):
        by_task.setdefault(task, set()).add(number)
    assert len(by_task) == 5
    assert all(len(found) == 1 for found in by_task.values())
    assert len(set(numbers)) == 5
    again = repeat_of(3)
    assert again is not None
    assert tasks.number(group_id(ATTEMPT, again)) == numbers[3]


def test_tasks_of_one_id_in_two_environments_are_told_apart() -> None:
    book = TaskBook(7, shuffle=False, tasks=lines("same", 1))
    tasks = JobTasks(7, (book, book), (), (1.0, 1.0))
    assert len({tasks.number(group_id(ATTEMPT, n)) for n in range(20)}) == 2


def test_evaluations_teach_the_core_no_task() -> None:
    assert job().number(group_id(ATTEMPT, EVALUATION_ORDINAL_BASE)) is None
