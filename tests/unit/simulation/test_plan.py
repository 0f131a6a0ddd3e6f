"""Forecasts: replicas, their quantiles, and what multiplies them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from domain.plan import JobPlan
from simulation.bootstrap import RecordedInputs
from simulation.plan import (
    Course,
    Draw,
    Figure,
    GoesOn,
    OutOfTime,
    PlanPool,
    PlanRequest,
    PlanTooLarge,
    Rehearse,
    cost_usd,
    figures_of,
    forecast,
    interval_of,
    shares_of,
)
from tests.simulation.plans import plan
from tests.unit.simulation.recorded_jobs import job


def course(*commits_s: float, staleness: tuple[int, ...] = (0, 1)) -> Course:
    """A run that began at 10 s."""
    return Course(10.0, commits_s, staleness, 2, 40.0, 20.0, 30.0, 7)


def request(**changes: object) -> PlanRequest:
    """A small request on recorded inputs."""
    base = PlanRequest(plan(max_steps=4), PlanPool(2, 16), RecordedInputs(job()), 4, 8)
    return replace(base, model_error=0.0, **changes)  # type: ignore[arg-type]


def drawn_step_s(seen: list[int] | None = None) -> Rehearse:
    """A run whose steps take as long as a decode step of the drawn engine, times a thousand."""

    def run(plan: JobPlan, pool: PlanPool, draw: Draw, goes_on: GoesOn) -> Course:
        if seen is not None:
            seen.append(plan.max_steps)
        step_s = 1_000 * draw.rates.engine.step_s + draw.groups.group(0).members[0].context_tokens
        return course(*(10.0 + step_s * number for number in range(1, plan.max_steps + 1)))

    return run


def test_figures_are_of_the_time_since_the_first_group() -> None:
    figures = figures_of(course(20.0, 30.0))
    assert figures[Figure.STEP_S] == pytest.approx(10.0)
    assert figures[Figure.TOTAL_S] == pytest.approx(20.0)
    assert figures[Figure.ENGINE_USE] == pytest.approx(20.0 / 40.0)
    assert figures[Figure.ACTIVE] == pytest.approx(1.0)
    assert figures[Figure.SANDBOXES] == pytest.approx(1.5)
    assert figures[Figure.STALENESS_MEAN] == pytest.approx(0.5)


def test_steps_that_were_not_made_are_as_the_later_half() -> None:
    # 30 s for the first two, 10 s for each of the later two: six more take 60 s.
    figures = figures_of(course(30.0, 40.0, 50.0, 60.0), steps_left=6)
    assert figures[Figure.TOTAL_S] == pytest.approx(50.0 + 60.0)
    assert figures[Figure.STEP_S] == pytest.approx(11.0)


def test_a_cost_is_of_engines_trainer_and_sandboxes_at_list_prices() -> None:
    assert cost_usd(3600.0, 3, 10.0) == pytest.approx(3 * 2.5 + 2.5 + 10 * 0.05)


def test_an_interval_holds_four_fifths_of_the_replicas() -> None:
    found = interval_of([float(number) for number in range(11)])
    assert (found.low, found.median, found.high) == (1.0, 5.0, 9.0)


def test_staleness_is_a_share_of_groups() -> None:
    assert shares_of([0, 0, 2, 2]) == (0.5, 0.0, 0.5)
    assert shares_of([]) == ()


def test_replicas_differ_by_what_they_draw() -> None:
    found = forecast(request(), drawn_step_s()).figures[Figure.STEP_S]
    assert found.low < found.median < found.high


def test_the_same_question_has_the_same_answer_and_another_seed_another() -> None:
    one, again = (forecast(request(), drawn_step_s()) for _ in range(2))
    other = forecast(request(seed=1), drawn_step_s())
    assert one == again
    assert one.figures[Figure.STEP_S] != other.figures[Figure.STEP_S]


def test_what_the_model_is_wrong_by_widens_the_interval() -> None:
    sure = forecast(request(replicas=40), drawn_step_s()).figures[Figure.STEP_S]
    unsure = replace(request(replicas=40), model_error=1.0)
    wide = forecast(unsure, drawn_step_s()).figures[Figure.STEP_S]
    assert wide.high / wide.low > 2 * sure.high / sure.low


def test_only_so_many_steps_are_simulated() -> None:
    seen: list[int] = []
    found = forecast(request(plan=plan(max_steps=400), steps=3), drawn_step_s(seen))
    assert set(seen) == {3}
    step = found.figures[Figure.STEP_S].median
    assert found.figures[Figure.TOTAL_S].median == pytest.approx(400 * step)


def times(count: int) -> Callable[[], bool]:
    """There is time left for so many questions."""
    left: Iterator[bool] = iter([True] * count)
    return lambda: next(left, False)


def test_a_spent_budget_ends_a_forecast_with_the_replicas_that_it_has() -> None:
    assert forecast(request(), drawn_step_s(), goes_on=times(3)).replicas == 3


def test_a_run_that_is_given_up_counts_for_nothing_and_ends_the_forecast() -> None:
    ended = iter([True, True, False])
    whole = drawn_step_s()

    def run(plan: JobPlan, pool: PlanPool, draw: Draw, goes_on: GoesOn) -> Course:
        if not next(ended):
            raise OutOfTime
        return whole(plan, pool, draw, goes_on)

    assert forecast(request(), run).replicas == 2


@pytest.mark.parametrize("runs", [0, 1])
def test_one_run_is_no_forecast(runs: int) -> None:
    with pytest.raises(PlanTooLarge, match=f"{runs} of 8"):
        forecast(request(), drawn_step_s(), goes_on=times(runs))


@pytest.mark.parametrize("seed", range(4))
def test_a_job_with_a_signal_is_never_drawn_without(seed: int) -> None:
    flat, rewarded = (
        replace(group, rollouts=tuple(replace(group.rollouts[0], reward=one) for one in rewards))
        for group, rewards in zip(job(2).groups, [(0.0, 0.0), (0.0, 1.0)], strict=True)
    )
    mostly = [replace(flat, ordinal=number) for number in range(30)]
    known = replace(job(), groups=(*mostly, replace(rewarded, ordinal=30)))
    groups = RecordedInputs(known).draw(Random(seed), 2).groups
    assert not all(groups.group(ordinal).is_flat for ordinal in range(300))


def test_a_bootstrap_draws_groups_and_fits_the_engine_to_them() -> None:
    inputs = RecordedInputs(job())
    draw = inputs.draw(Random(1), 1)
    assert draw.rates.engine.step_s == pytest.approx(0.01, rel=1e-3)
    recorded = {group.rollouts[0].trajectory() for group in job().groups}
    assert {draw.groups.group(ordinal).members[0] for ordinal in range(20)} <= recorded
    assert draw.groups.group(3) == draw.groups.group(3)


def test_a_group_of_one_reward_is_flat_and_a_larger_one_repeats_members() -> None:
    group = RecordedInputs(job()).draw(Random(1), 3).groups.group(0)
    assert group.is_flat
    assert len(group.members) == 3
    assert len(set(group.members)) == 1
