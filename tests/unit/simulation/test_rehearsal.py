"""The core in virtual time with a plan's delays, sandboxes and flat groups."""

from dataclasses import dataclass, replace

import pytest

from domain.plan import JobPlan, Scheduling, StrategyName
from scheduler.core.strategies.venus import Venus
from simulation import rehearsal
from simulation.bootstrap import course_of
from simulation.plan import (
    CannotModel,
    Course,
    Draw,
    OutOfTime,
    PlannedGroup,
    PlanPool,
    PlanTooLarge,
    PoolTooSmall,
)
from simulation.rates import Crowd, Crowds, EngineRates, Rates, TrainerRates, Waits
from simulation.recorded import (
    RecordedGroup,
    RecordedJob,
    RecordedRollout,
    RecordedStep,
    RecordedTurn,
)
from simulation.rehearsal import RehearsedWorld, rehearse, setup_of
from simulation.workload.trajectory import Tool, Trajectory, Turn
from tests.simulation.plans import plan

ONE = Trajectory((Turn(10, 20, Tool.OTHER, 3.0), Turn(5, 10, None, 0.0)))
"""30 decode steps and a tool of 3 s."""

RATES = Rates(
    EngineRates(step_s=0.1, kv_token_s=0.0, prefill_token_s=0.0, slots=8, kv_tokens=10_000),
    TrainerRates(token_s=0.01, update_s=2.0),
    sync_s=0.0,
)

NO_WAITS = Waits(place_s=0.0, turn_s=0.0, close_s=0.0)


@dataclass(frozen=True, slots=True)
class Same:
    """Every group is the same; every n-th one is flat. Two rollouts, alike unless said."""

    flat_every: int = 0
    waits: Waits = NO_WAITS
    grade_s: float = 0.0
    grade_crowd: float = 0.0
    members: tuple[Trajectory, ...] = (ONE, ONE)

    def group(self, ordinal: int) -> PlannedGroup:
        """The same one."""
        is_flat = self.flat_every > 0 and ordinal % self.flat_every == 0
        waits = (self.waits,) * len(self.members)
        return PlannedGroup(self.members, waits, self.grade_s, is_flat, self.grade_crowd)


def small(**changes: object) -> JobPlan:
    """One group of two a step, synchronous, two steps."""
    base = plan(groups_per_batch=1, max_staleness=0, async_ratio=1.0, max_steps=2, engines_max=1)
    return replace(base, **changes)  # type: ignore[arg-type]


def run(
    job: JobPlan, rates: Rates = RATES, groups: Same | None = None, sandboxes: int = 16
) -> Course:
    """Rehearse on one engine."""
    return rehearse(job, PlanPool(1, sandboxes), Draw(rates, groups or Same()))


def step_s(course: Course) -> float:
    """Seconds between the first and the second commit."""
    return course.commits_s[1] - course.commits_s[0]


# Prefill steps of both turns, 30 decode steps, the tool, 2 x 45 trained tokens, the update.
PLAIN_S = (2 + 30) * 0.1 + 3.0 + 0.9 + 2.0


def test_a_synchronous_step_is_the_sum_of_its_parts() -> None:
    assert step_s(run(small())) == pytest.approx(PLAIN_S, abs=0.3)


@pytest.mark.parametrize("wait", ["place_s", "turn_s", "close_s"])
def test_a_wait_lengthens_a_synchronous_step(wait: str) -> None:
    longer = run(small(), groups=Same(waits=replace(NO_WAITS, **{wait: 4.0})))
    assert step_s(longer) - step_s(run(small())) == pytest.approx(4.0, abs=0.2)


def test_verdicts_lengthen_a_synchronous_step() -> None:
    longer = run(small(), groups=Same(grade_s=4.0))
    assert step_s(longer) - step_s(run(small())) == pytest.approx(4.0, abs=0.2)


def test_a_wait_seen_beside_few_is_longer_beside_many() -> None:
    crowds = Crowds(place=Crowd(base=0.0, slope=1.0))
    alone = Same(waits=replace(NO_WAITS, place_s=4.0, place_crowd=1.0))
    # Both of two members are in flight from the same moment on: they wait twice as long.
    longer = run(small(), replace(RATES, crowds=crowds), alone)
    assert step_s(longer) - step_s(run(small())) == pytest.approx(8.0, abs=0.2)


def test_verdicts_seen_beside_others_are_quick_where_none_is_left() -> None:
    crowds = Crowds(grade=Crowd(base=1.0, slope=1.0))
    busy = Same(grade_s=4.0, grade_crowd=1.0)
    quick = run(small(), replace(RATES, crowds=crowds), busy)
    assert step_s(quick) - step_s(run(small())) == pytest.approx(2.0, abs=0.2)


def test_tools_seen_beside_few_are_slow_beside_many() -> None:
    crowds = Crowds(tool=Crowd(base=0.0, slope=1.0))
    alone = Same(waits=replace(NO_WAITS, crowd=1.0))
    slower = run(small(), replace(RATES, crowds=crowds), alone)
    assert step_s(slower) - step_s(run(small())) == pytest.approx(3.0, abs=0.2)


@pytest.mark.parametrize("prompts", [(10, 4), (4, 10)])
def test_members_share_no_more_than_the_shortest_of_their_prompts(prompts: tuple[int, int]) -> None:
    members = tuple(
        Trajectory((replace(ONE.turns[0], new_tokens=n), ONE.turns[1])) for n in prompts
    )
    assert step_s(run(small(), groups=Same(members=members))) == pytest.approx(PLAIN_S, abs=0.3)


def test_a_weight_sync_stands_between_two_synchronous_steps() -> None:
    longer = run(small(), replace(RATES, sync_s=5.0))
    assert step_s(longer) - step_s(run(small())) == pytest.approx(5.0, abs=0.3)


def test_flat_groups_are_dropped_and_refilled() -> None:
    every_second = run(small(max_steps=4), groups=Same(flat_every=2))
    plain = run(small(max_steps=4))
    assert len(every_second.commits_s) == 4
    assert every_second.commits_s[-1] > 1.5 * plain.commits_s[-1]


def test_too_few_sandboxes_slow_a_job_down() -> None:
    wide = small(groups_per_batch=4, async_ratio=1.0)
    assert run(wide, sandboxes=3).commits_s[-1] > 1.5 * run(wide, sandboxes=16).commits_s[-1]
    assert run(wide, sandboxes=3).sandboxes_peak <= 3


def test_a_run_counts_generation_engines_and_sandboxes() -> None:
    course = run(small())
    # Two sequences at once, 30 steps of 0.1 s each, in each of two steps.
    assert course.generate_s == pytest.approx(2 * 2 * 3.0, rel=0.2)
    assert course.busy_s < course.commits_s[-1]
    assert course.sandbox_s == pytest.approx(2 * 2 * (3.2 + 3.0), rel=0.1)
    assert course.sandboxes_peak == 2


def test_an_asynchronous_job_is_faster_and_staler() -> None:
    synchronous = run(small(max_steps=6))
    ahead = run(small(max_steps=6, max_staleness=2, async_ratio=2.0))
    assert ahead.commits_s[-1] < 0.8 * synchronous.commits_s[-1]
    assert set(synchronous.staleness) == {0}
    assert max(ahead.staleness) >= 1


def test_a_strategy_that_the_core_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "rules_for", Venus)
    with pytest.raises(CannotModel, match="aimd"):
        run(small(scheduling=Scheduling(StrategyName.AIMD)))


@pytest.mark.parametrize("name", list(StrategyName))
def test_every_strategy_of_the_core_can_be_rehearsed(name: StrategyName) -> None:
    assert len(run(small(scheduling=Scheduling(name))).commits_s) == 2


def test_a_run_that_never_ends_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "EVENTS_MAX", 20)
    with pytest.raises(PlanTooLarge, match="20 events"):
        run(small(max_steps=50))


def test_a_run_asks_for_time_within_itself() -> None:
    asked = iter([True, False])
    with pytest.raises(OutOfTime):
        rehearse(small(max_steps=10**6), PlanPool(1, 16), Draw(RATES, Same()), lambda: next(asked))


def test_a_job_whose_groups_are_all_flat_has_no_end_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rehearsal, "FLAT_RUN_MAX", 20)
    with pytest.raises(CannotModel, match="no signal"):
        run(small(), groups=Same(flat_every=1))


def test_a_group_of_one_never_makes_a_step() -> None:
    with pytest.raises(CannotModel, match="group of one"):
        run(small(group_size=1))


def test_a_pool_that_never_holds_a_group_is_too_small() -> None:
    with pytest.raises(PoolTooSmall, match="a group needs 2 sandboxes; a pool of 2 gives 1"):
        run(small(), sandboxes=2)
    assert len(run(small(), sandboxes=3).commits_s) == 2


def test_a_pool_with_fewer_engines_than_the_least_is_too_small() -> None:
    with pytest.raises(PoolTooSmall, match="needs 2 engine hosts; the pool has 1"):
        run(small(engines_min=2, engines_max=2))


def test_a_sandbox_is_held_from_the_opening_to_the_end_with_its_waits() -> None:
    waits = replace(NO_WAITS, place_s=2.0, close_s=4.0)
    longer, plain = run(small(), groups=Same(waits=waits)), run(small())
    assert longer.sandbox_s - plain.sandbox_s == pytest.approx(2 * 2 * (2.0 + 4.0), rel=0.01)


def test_a_run_counts_machines_as_its_record_does() -> None:
    waits = replace(NO_WAITS, place_s=2.0, close_s=4.0)
    ran = run(small(max_steps=1), groups=Same(waits=waits))
    # Placed 2 s after the opening; 2.1 s and 1.1 s of generation, 3 s of a tool, 4 s to its end.
    turns = (RecordedTurn(10, 10, 20, 2.1, 3.0), RecordedTurn(35, 5, 10, 1.1, 0.0))
    one = RecordedRollout("engine0", 2.0, 2.0 + 6.2 + 4.0, turns, 0.0)
    group = RecordedGroup(0, 0.0, one.ended_s, one.ended_s, (one, one))
    record = course_of(RecordedJob((group,), (RecordedStep(1, 20.0, 3.0, 2.0, 90),), ()))
    assert ran.generate_s == pytest.approx(record.generate_s, rel=0.01)
    assert ran.busy_s == pytest.approx(record.busy_s, rel=0.01)
    assert ran.sandbox_s == pytest.approx(record.sandbox_s, rel=0.01)
    assert ran.sandboxes_peak == record.sandboxes_peak == 2


def test_work_of_groups_that_were_never_graded_is_not_counted() -> None:
    """A job's end cuts off what ran ahead; of a recorded one nothing is kept of it."""

    @dataclass(frozen=True, slots=True)
    class LaterNever(Same):
        def group(self, ordinal: int) -> PlannedGroup:
            return replace(Same.group(self, ordinal), grade_s=0.0 if ordinal < 2 else 1e4)

    ahead = run(small(max_staleness=2, async_ratio=3.0), groups=LaterNever())
    assert ahead.generate_s == pytest.approx(2 * 2 * 3.2, rel=0.05)
    assert ahead.sandbox_s == pytest.approx(2 * 2 * 6.2, rel=0.05)
    assert ahead.sandboxes_peak == 4


def test_an_engine_may_die_between_a_rollout_s_last_token_and_its_end() -> None:
    """The core places such a rollout again, where nothing of it is left to do."""
    plan = small(max_steps=1, engines_min=1)
    groups = Same(waits=replace(NO_WAITS, close_s=6.0))
    setup = setup_of(plan, PlanPool(1, 16), Draw(RATES, groups))
    world = RehearsedWorld(setup, Draw(RATES, groups), PlanPool(1, 16), lambda: True)
    # The last token comes at 6.2 s.
    world.clock.at(8.0, lambda: world.lose_engine(0))
    world.clock.at(8.0, lambda: world.expire_engine(0))
    world.clock.at(8.5, lambda: world.revive_engine(0))
    course = world.course()
    assert len(course.commits_s) == 1
    assert course.generate_s == pytest.approx(2 * 3.2, rel=0.05)


def test_a_run_in_which_nothing_happens_any_more_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rehearsal, "STILL_TICKS_MAX", 100)
    # No turn of 30 tokens ever fits into one page.
    tiny = replace(RATES, engine=replace(RATES.engine, kv_tokens=16))
    with pytest.raises(CannotModel, match="stands still"):
        run(small(), tiny)
