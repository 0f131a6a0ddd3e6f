"""Whole gangs, the queue, sandboxes between jobs."""

from typing import Any

from domain.commands import ForkSandboxes, GrantGang, ReleaseGang, SetJobState
from domain.ids import OrganizationId
from domain.plan import EngineUse, EvaluationPlan, JobPlan, TenantShare
from domain.states import Desired, JobState
from scheduler.core import room
from scheduler.core.forecast import NO_START
from scheduler.core.gangs import OVERTAKEN_MAX, YIELDS
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


def tenant(name: str) -> OrganizationId:
    return OrganizationId(f"org_{name}")


def of(name: str, organization: str, **changes: Any) -> JobPlan:
    return plan(name, organization_id=tenant(organization), **({"engines_max": 1} | changes))


def states(bench: Bench, *names: str) -> list[JobState]:
    return [bench.job(name).state for name in names]


def test_the_next_gang_is_of_the_tenant_that_holds_least_for_its_weight() -> None:
    bench = Bench(pool(engines=3, trainers=3, tenants=(TenantShare(tenant("x"), weight=3.0),)))
    for name in ("a", "b", "c"):
        bench.submit(of(name, "y"))
    for name in ("d", "e"):
        bench.submit(of(name, "y"))
    bench.submit(of("f", "x"))
    assert [bench.job(name).queue_position for name in ("f", "d", "e")] == [1, 2, 3]
    bench.desire(Desired.CANCEL, name="a")
    assert states(bench, "f", "d") == [JobState.PROVISIONING, JobState.QUEUED]


def test_positions_interleave_tenants_by_their_shares() -> None:
    bench = Bench(pool(engines=1, trainers=1))
    bench.submit(of("a", "x"))
    for name, organization in (("b", "x"), ("c", "x"), ("d", "y"), ("e", "y")):
        bench.submit(of(name, organization))
    assert [bench.job(name).queue_position for name in "dbec"] == [1, 2, 3, 4]


def test_a_job_of_another_tenant_may_pass_one_that_does_not_fit_but_not_for_ever() -> None:
    bench = Bench(pool(engines=2, trainers=20))
    bench.submit(of("a", "z"))
    bench.submit(of("big", "x", engines_min=2, engines_max=2))
    for number in range(OVERTAKEN_MAX):
        bench.submit(of(f"small{number}", "y"))
        assert bench.job(f"small{number}").gang is not None
        bench.desire(Desired.CANCEL, name=f"small{number}")
    bench.submit(of("late", "y"))
    assert bench.job("late").reason == "waits for the jobs before it"
    bench.desire(Desired.CANCEL, name="a")
    assert states(bench, "big", "late") == [JobState.PROVISIONING, JobState.QUEUED]


def test_a_gang_takes_no_engine_that_the_first_job_of_another_tenant_needs() -> None:
    bench = Bench(pool(engines=4, trainers=4))
    bench.submit(of("a", "x", engines_min=4, engines_max=4))
    bench.submit(of("b", "y", engines_max=4))
    bench.submit(of("c", "z", engines_max=4))
    bench.desire(Desired.CANCEL, name="a")
    gangs = [bench.job(name).gang for name in "bc"]
    assert [gang.engines for gang in gangs if gang is not None] == [3, 1]


GUARANTEED = TenantShare(tenant("x"), engines=2, trainers=2, sandboxes=8)


def test_borrowers_yield_for_a_guarantee_newest_first_and_no_more_than_needed() -> None:
    bench = Bench(pool(engines=3, trainers=3, tenants=(GUARANTEED,)))
    for name in ("a", "b", "c"):
        bench.submit(of(name, "y"))
    bench.submit(of("d", "x"))
    held = [JobState.PROVISIONING, JobState.PROVISIONING, JobState.RESUMING]
    assert states(bench, "a", "b", "c") == held
    assert bench.job("d").gang is not None
    assert bench.job("c").gang is None


def test_nobody_yields_for_a_job_beyond_its_guarantee() -> None:
    bench = Bench(pool(engines=3, trainers=3, tenants=(GUARANTEED,)))
    for name in ("a", "b", "c"):
        bench.submit(of(name, "y"))
    bench.submit(of("d", "x", engines_min=3, engines_max=3))
    assert states(bench, "a", "b", "c") == [JobState.PROVISIONING] * 3


def test_nobody_yields_when_that_would_not_be_enough() -> None:
    tenants = (GUARANTEED, TenantShare(tenant("y"), engines=2, trainers=2, sandboxes=8))
    bench = Bench(pool(engines=3, trainers=3, tenants=tenants))
    for name, organization in (("a", "y"), ("b", "y"), ("c", "z")):
        bench.submit(of(name, organization))
    bench.submit(of("d", "x", engines_min=2, engines_max=2))
    assert states(bench, "a", "b", "c") == [JobState.PROVISIONING] * 3


def test_a_borrower_does_not_pass_a_guaranteed_job_that_waits() -> None:
    capacity = pool(engines=3, trainers=3, tenants=(GUARANTEED,))
    bench = Bench.running(of("a", "y", engines_min=2, engines_max=2), engines=2, pool=capacity)
    bench.submit(of("d", "x", engines_min=2, engines_max=2))
    bench.submit(of("e", "z"))
    assert states(bench, "a", "d", "e") == [JobState.PAUSING, JobState.QUEUED, JobState.QUEUED]
    assert shown(bench, "a").reason == YIELDS
    assert shown(bench, "e").reason == "waits for the jobs before it"
    bench.tick(plan().drain_s)
    assert states(bench, "a", "d", "e") == [
        JobState.RESUMING,
        JobState.PROVISIONING,
        JobState.PROVISIONING,
    ]


def test_jobs_on_one_base_share_its_engines_and_count_them_once() -> None:
    bench = Bench(pool(engines=2, trainers=4))
    shared = EngineUse("base-8b")
    for name in ("a", "b"):
        bench.submit(of(name, "x", engines_min=2, engines_max=2, engine_use=shared))
    bench.submit(of("c", "x", engine_use=EngineUse("other")))
    gangs = [bench.job(name).gang for name in "abc"]
    assert [gang and gang.engines for gang in gangs] == [2, 2, None]
    assert bench.job("c").reason == "waits for engines: needs 1, 0 of the pool free"


def test_engines_that_tenants_share_count_for_each_in_part() -> None:
    bench = Bench(pool(engines=4, trainers=4))
    for name, organization in (("a", "x"), ("b", "y")):
        use = {"engines_min": 2, "engines_max": 2, "engine_use": EngineUse("base")}
        bench.submit(of(name, organization, **use))
    held = room.by_tenant(bench.core.state)
    assert [held[tenant(name)].engines for name in "xy"] == [1.0, 1.0]


def test_bytes_of_sandboxes_count_where_the_pool_has_a_number() -> None:
    bench = Bench(pool(engines=2, trainers=2, sandbox_bytes=1000))
    bench.submit(of("a", "x", sandbox_bytes=300))
    bench.submit(of("b", "x", sandbox_bytes=300))
    bench.submit(of("c", "x", sandbox_bytes=600))
    waits = "waits for bytes of agent sandboxes: needs 600, 400 of the pool free"
    assert bench.job("b").reason == waits
    never = "never_fits: needs 1200 bytes of agent sandboxes, the pool has 1000"
    assert bench.job("c").reason == never


def test_a_waiting_job_shows_when_it_will_start_from_the_pace_of_the_running_one() -> None:
    bench = Bench.running(plan("a", max_steps=4, max_staleness=0, checkpoint_every=0))
    bench.submit(plan("b"))
    unknown = shown(bench, "b")
    assert unknown.predicted_start is None
    assert unknown.predicted_start_reason == "no step of job_a has been measured yet"
    for step in (1, 2):
        bench.now += 100.0
        bench.play_open(version=step - 1)
        bench.commit(step)
        bench.synced(plan("a"), 0, step)
    bench.tick()
    assert shown(bench, "b").predicted_start == 400.0
    assert shown(bench, "b").predicted_start_reason is None
    assert bench.job("a").start == NO_START


def test_a_parked_job_says_why_it_has_no_start() -> None:
    bench = Bench()
    bench.submit(plan(engines_min=9, engines_max=9))
    assert shown(bench, "a").predicted_start is None
    assert (shown(bench, "a").predicted_start_reason or "").startswith("never_fits")
