"""Each reason is the one that decides: not another limit that happens to be reached as well."""

from typing import Any

import pytest

from domain.commands import NoteJob
from domain.plan import EvaluationPlan, StrategyName
from domain.schedule import NextGroup, WaitReason
from scheduler.core.views import ScheduleView, view_schedule
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench
from tests.unit.scheduler.core.strategies.stand import finished, job_of, sampled, stand


def look(bench: Bench) -> ScheduleView:
    view = view_schedule(bench.core.state, bench.job().plan.job_id, bench.now, 1000)
    assert view is not None
    return view


def upcoming(bench: Bench) -> tuple[NextGroup, dict[str, float]]:
    view = look(bench)
    return view.next_group, dict(view.next_group_numbers)


def reasons(bench: Bench) -> list[WaitReason]:
    return [member.wait_reason for group in look(bench).groups for member in group.members]


def commit_open(bench: Bench, step: int) -> None:
    bench.play_open()
    bench.commit(step)


def test_the_groups_of_the_last_step_are_not_too_old() -> None:
    bench = Bench.running(plan(max_staleness=2, async_ratio=9.0, max_steps=1))
    assert upcoming(bench) == (NextGroup.LAST_STEP, {"alive": 2, "max": 2, "last_step": 1})


def test_after_the_last_step_none_is_being_filled() -> None:
    bench = Bench.running(plan(max_staleness=0, max_steps=1))
    commit_open(bench, 1)
    view = look(bench)
    assert (view.filling_step, view.need) == (None, 0)
    assert view.next_group is NextGroup.LAST_STEP


def test_engines_that_are_a_version_behind_are_no_matter_of_staleness() -> None:
    job = plan(max_staleness=0, max_steps=3)
    bench = Bench.running(job)
    commit_open(bench, 1)
    assert upcoming(bench) == (NextGroup.WAITS_FOR_WEIGHTS, {"served": 0, "committed": 1})
    bench.synced(job, 0, 1)
    assert upcoming(bench)[0] is not NextGroup.WAITS_FOR_WEIGHTS


def test_groups_that_would_be_too_old_are() -> None:
    bench = Bench.running(plan(max_staleness=1, async_ratio=9.0, max_steps=9))
    assert upcoming(bench) == (NextGroup.STALENESS, {"alive": 4, "max": 4})


WIDE: dict[str, Any] = {"max_staleness": 4, "async_ratio": 3.0}


@pytest.mark.parametrize(
    ("strategy", "knobs", "numbers"),
    [
        (StrategyName.SLIME_SYNC, {}, {"filled": 0, "begun": 2, "max": 2}),
        (StrategyName.SLIME_BOUNDED, {"pool_per_engine": 1.0, "poll_s": 0.0},
         {"open": 1, "complete": 0, "max": 1}),
        (StrategyName.ROLLFLASH, {"env_groups": 2.0, "async_ratio": 0.0}, {"queues": 2, "open": 2}),
        (StrategyName.AIMD, {"in_flight_max": 8.0}, {"open_rollouts": 8, "max": 8}),
    ],
)  # fmt: skip
def test_a_strategy_that_starts_nothing_says_so(
    strategy: StrategyName, knobs: dict[str, float], numbers: dict[str, float]
) -> None:
    bench = stand(job_of(strategy, knobs, **WIDE))
    bench.tick()
    opened = len(bench.opened())
    assert upcoming(bench) == (NextGroup.HELD_BY_STRATEGY, numbers)
    bench.tick()
    assert len(bench.opened()) == opened, "it is as it was said"


def test_contexts_far_above_what_the_engines_hold_start_no_group() -> None:
    bench = stand(job_of(StrategyName.VENUS, **WIDE, group_size=2), kv_tokens=1000)
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
        finished(bench, rollout, 1500)
    bench.play(bench.group(1))
    assert upcoming(bench) == (NextGroup.HELD_BY_STRATEGY, {"kv_held": 3000, "max": 2000})


def admitting_nobody() -> Bench:
    """ThunderAgent with room for one of two programs."""
    job = job_of(StrategyName.THUNDERAGENT_UPSTREAM, group_size=2, groups_per_batch=1,
                 async_ratio=1.0, watchdog_s=10.0)  # fmt: skip
    bench = stand(job, kv_tokens=150)
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
    return bench


def test_a_rollout_that_its_strategy_does_not_admit_is_held_by_it() -> None:
    assert reasons(admitting_nobody()) == [WaitReason.RUNNING, WaitReason.HELD_BY_STRATEGY]


def test_a_plain_strategy_holds_no_rollout_from_an_engine_that_fits() -> None:
    bench = Bench.running(plan())
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
    assert WaitReason.HELD_BY_STRATEGY not in reasons(bench)


def test_a_stall_behind_a_strategy_names_the_strategy() -> None:
    job = job_of(StrategyName.THUNDERAGENT_UPSTREAM, group_size=1, groups_per_batch=1,
                 async_ratio=1.0, watchdog_s=4.0)  # fmt: skip
    bench = stand(job, kv_tokens=1000)
    rollout = bench.rollout(0)
    bench.ready(rollout)
    sampled(bench, rollout, 2000)
    bench.tick(5.0)
    finished(bench, rollout, 2000)
    assert reasons(bench) == [WaitReason.PAUSED_BY_PRESSURE]
    (note,) = bench.found(NoteJob, bench.tick(4.9))
    body = dict(note.body)
    assert body["resource"] == "strategy"
    assert body["detail"].startswith("thunderagent-upstream holds 1 rollouts")


def test_a_complete_group_of_an_evaluation_waits_for_the_others_of_it() -> None:
    bench = Bench.running(plan(evaluation=EvaluationPlan(2, 1, None)))
    first, second = [g for g in bench.job().groups.values() if not g.is_training]
    bench.play(first)
    (shown,) = [group for group in look(bench).groups if group.group_id == first.group_id]
    assert [one.wait_reason for one in shown.members] == [WaitReason.WAITS_FOR_EVALUATION]
    assert dict(shown.members[0].numbers) == {"step": 0, "unfinished": 1, "unopened": 0}
    bench.play(second)
    assert all(group.is_training for group in bench.job().groups.values())
