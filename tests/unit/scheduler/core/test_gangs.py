"""Whole gangs, the queue, sandboxes between jobs."""

from domain.commands import ForkSandboxes, GrantGang, ReleaseGang, SetJobState
from domain.plan import EvaluationPlan
from domain.states import Desired, JobState
from tests.simulation.plans import plan, pool
from tests.unit.scheduler.core.bench import Bench


def shown(bench: Bench, name: str) -> SetJobState:
    states = bench.found(SetJobState, bench.commands)
    return next(s for s in reversed(states) if s.job_id == plan(name).job_id)


def test_a_job_that_fits_is_granted_in_the_step_of_its_submission() -> None:
    bench = Bench()
    commands = bench.submit(plan(engines_max=9))
    assert bench.found(GrantGang, commands) == [
        GrantGang(plan().job_id, plan().attempt_id, engines=2)
    ]
    assert shown(bench, "a").state is JobState.PROVISIONING


def test_with_one_trainer_the_second_job_waits_with_position_and_reason() -> None:
    bench = Bench()
    bench.submit(plan("a"))
    for name in ("b", "c"):
        assert bench.found(GrantGang, bench.submit(plan(name))) == []
    assert (shown(bench, "b").queue_position, shown(bench, "c").queue_position) == (1, 2)
    assert shown(bench, "b").reason == "waits for trainers: needs 1, 0 of the pool free"


def test_a_job_that_can_never_fit_parks_with_a_reason_and_blocks_nobody() -> None:
    bench = Bench(pool(engines=3, trainers=2))
    bench.submit(plan("a", engines_min=1, engines_max=1))
    bench.submit(plan("b", engines_min=4, engines_max=4))
    commands = bench.submit(plan("c", engines_min=2, engines_max=2))
    assert [c.job_id for c in bench.found(GrantGang, commands)] == [plan("c").job_id]
    assert shown(bench, "b").reason == "never_fits: needs 4 engines, the pool has 3"
    assert shown(bench, "b").queue_position is None


def test_an_evaluation_group_that_is_too_large_can_never_fit() -> None:
    bench = Bench(pool(sandboxes=5, grading_reserve=1))
    bench.submit(plan(evaluation=EvaluationPlan(4, 5, None)))
    assert shown(bench, "a").reason == "never_fits: needs 5 agent sandboxes, the pool has 4"


def test_a_job_that_fits_later_holds_back_those_behind_it() -> None:
    bench = Bench(pool(engines=2, trainers=3))
    bench.submit(plan("a", engines_max=1))
    bench.submit(plan("b", engines_min=2))
    bench.submit(plan("c"))
    assert shown(bench, "c").reason == "waits for the jobs before it"
    commands = bench.desire(Desired.CANCEL)
    bench.tick()
    granted = bench.found(GrantGang, bench.commands)
    assert [c.job_id for c in granted] == [plan("a").job_id, plan("b").job_id]
    assert bench.found(ReleaseGang, commands) != []


def test_the_queue_moves_up_when_a_gang_is_released() -> None:
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.submit(plan(name))
    commands = bench.desire(Desired.CANCEL)
    assert [c.job_id for c in bench.found(GrantGang, commands)] == [plan("b").job_id]
    assert shown(bench, "c").queue_position == 1


def test_the_grading_reserve_is_never_given_to_agents() -> None:
    bench = Bench.running(plan(group_size=2), pool=pool(sandboxes=3, grading_reserve=1))
    assert sum(len(fork.members) for fork in bench.forked()) == 2
    assert bench.job().sandboxes == 2


def test_sandboxes_alternate_between_two_jobs() -> None:
    bench = Bench(pool(trainers=2, sandboxes=9, grading_reserve=1))
    bench.node()
    for name in ("a", "b"):
        bench.start(plan(name, engines_max=1))
    assert (bench.job("a").sandboxes, bench.job("b").sandboxes) == (8, 0)
    opened = []
    for _ in range(4):
        for name in ("a", "b"):
            group = next((g for g in bench.job(name).groups.values() if g.is_unfinished), None)
            if group is not None:
                bench.play(group)
                opened.append((bench.job("a").sandboxes, bench.job("b").sandboxes))
    assert max(held for _, held in opened) >= 4, opened


def test_a_job_within_its_guarantee_is_not_starved_by_single_sandboxes() -> None:
    bench = Bench(pool(trainers=2, sandboxes=5, grading_reserve=1))
    bench.node()
    bench.start(plan("a", engines_max=1, group_size=1, groups_per_batch=4, max_staleness=1))
    bench.start(plan("b", engines_max=1, group_size=3))
    assert bench.job("a").sandboxes == 4
    for ordinal in (0, 1, 2):
        bench.play(bench.group(ordinal))
    assert bench.job("b").sandboxes == 3
    assert len(bench.found(ForkSandboxes, bench.commands)) == 5
