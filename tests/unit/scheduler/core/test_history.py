"""Running means and estimates."""

import sys

from domain.events import Remaining
from scheduler.core.history import (
    GROUP_FADE,
    LEAST_TURNS_LEFT,
    MEMORY,
    PRIOR_TOKENS_PER_TURN,
    TASK_MEMORY,
    TASK_WEIGHT_MAX,
    TASKS_MAX,
    TOKENS_PER_SECOND,
    UNKNOWN,
    History,
    Known,
    Mean,
    TaskHistory,
)


def test_a_mean_of_few_values_is_exact_and_leans_on_its_prior() -> None:
    mean = Mean()
    for value in (2.0, 4.0):
        mean.add(value)
    assert mean.value == 3.0
    assert 3.0 < mean.blend(10.0) < 10.0


def test_a_mean_forgets_what_is_long_ago() -> None:
    mean = Mean()
    for _ in range(1000):
        mean.add(1.0)
    for _ in range(3 * int(MEMORY)):
        mean.add(5.0)
    assert mean.value > 4.5


def test_an_estimate_falls_with_each_turn_and_never_to_nothing() -> None:
    history = History()
    estimates = [history.remaining_s(turns, 3) for turns in (0, 1, 2, 50)]
    assert estimates == sorted(estimates, reverse=True)
    assert estimates[-1] > 0
    assert LEAST_TURNS_LEFT > 0


def test_tool_seconds_are_part_of_an_estimate() -> None:
    slow, fast = History(), History()
    for _ in range(9):
        slow.add_rollout(2, 20, 30.0)
        fast.add_rollout(2, 20, 0.0)
    assert slow.remaining_s(0, 2) > fast.remaining_s(0, 2)


def test_the_longest_group_fades() -> None:
    history = History()
    history.add_group(10.0)
    history.add_group(1.0)
    assert history.longest_group_s == 10.0 * GROUP_FADE


def test_a_learned_estimate_is_compared_in_the_same_seconds() -> None:
    history = History()
    assert history.seconds_of(Remaining(100.0, 300.0, 7.0, 3.0)) == 100.0 / TOKENS_PER_SECOND + 7.0


def test_without_a_predictor_only_the_prior_speaks() -> None:
    history = History()
    history.add_rollout(40, 4_000, 90.0)
    assert history.prior_s(1, 4) == History().prior_s(1, 4)
    assert history.prior_s(9, 4) == LEAST_TURNS_LEFT * PRIOR_TOKENS_PER_TURN / TOKENS_PER_SECOND


def test_siblings_are_trusted_most_then_the_task_then_the_job_then_the_plan() -> None:
    history = History()
    assert history.turns_of(4, UNKNOWN) == 4.0
    for _ in range(1000):
        history.add_rollout(10, 100, 0.0)
    job = history.turns_of(4, UNKNOWN)
    assert 9.5 < job < 10.0
    for _ in range(8):
        history.add_rollout(40, 400, 0.0, task=7)
    task = history.turns_of(4, Known(7))
    assert abs(task - 40.0) < abs(task - job)
    siblings = history.turns_of(4, Known(7, ended_turns=300, ended=3))
    assert abs(siblings - 100.0) < abs(siblings - 40.0) < abs(siblings - job)


def test_a_task_that_was_never_seen_is_judged_by_its_job() -> None:
    history = History()
    history.add_rollout(40, 400, 0.0, task=7)
    assert history.turns_of(4, Known(8)) == history.turns_of(4, UNKNOWN)


def test_a_task_follows_the_policy_within_a_few_groups() -> None:
    tasks = TaskHistory()
    for _ in range(100):
        tasks.add(7, 40)
    for _ in range(3 * int(TASK_MEMORY)):
        tasks.add(7, 10)
    mean, weight = tasks.weighted(7)
    assert mean < 13.0
    assert weight == TASK_WEIGHT_MAX


def test_one_former_rollout_of_a_task_counts_for_one_sibling() -> None:
    tasks = TaskHistory()
    tasks.add(7, 40)
    assert tasks.weighted(7) == (40.0, 1.0)
    assert tasks.weighted(None) == (0.0, 0.0)


def test_only_the_tasks_seen_last_are_remembered() -> None:
    tasks = TaskHistory()
    for task in range(TASKS_MAX):
        tasks.add(task, 5)
    tasks.add(0, 5)
    tasks.add(TASKS_MAX, 5)
    assert len(tasks.turns) == TASKS_MAX
    assert tasks.weighted(0) == (5.0, TASK_WEIGHT_MAX)
    assert tasks.weighted(1) == (0.0, 0.0)


def test_a_task_takes_no_more_than_its_share_of_the_memory_of_a_rollout() -> None:
    tasks = TaskHistory()
    numbers = [(1 << 55) + task for task in range(TASKS_MAX)]
    for task in numbers:
        tasks.add(task, 5)
    parts = [(task, mean, mean.value, mean.weight) for task, mean in tasks.turns.items()]
    held = sys.getsizeof(tasks.turns) + sum(sys.getsizeof(one) for part in parts for one in part)
    assert held <= 250 * TASKS_MAX
