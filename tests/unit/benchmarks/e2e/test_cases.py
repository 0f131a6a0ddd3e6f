"""What is run, and in which order."""

from collections import Counter
from random import Random

import pytest

from benchmarks.e2e import model
from benchmarks.e2e.cases import (
    BASELINES,
    CELLS,
    COMPARED,
    CROWD,
    KNOBS_SCALED,
    LOW,
    PRESSURE,
    SEEDS,
    STALENESS_MAX,
    STEPS,
    all_cases,
    bounds_of,
    is_within,
    published,
    quick_cases,
    scaled,
    spec_of,
    with_engines,
)
from benchmarks.e2e.checks import LIVE_MIN, LOW_PRESSURE_MAX, PRESSURE_MIN
from benchmarks.e2e.delays.env import Shape, gaps_of
from benchmarks.e2e.measures import pressure
from benchmarks.e2e.records import key_of
from benchmarks.schedule.cases import VENUS
from domain.engine import PAGE_TOKENS
from domain.knobs import KNOBS
from domain.plan import Mechanism, StrategyName
from simulation.recorded import RecordedGroup, RecordedRollout, RecordedTurn
from venusrl.models.job_spec import JobSpec


def test_every_block_has_venus_and_each_baseline_once_per_seed() -> None:
    cases = [case for case in all_cases(COMPARED, SEEDS, STEPS) if not case.entry.off]
    counts = Counter((case.cell.name, case.entry.name) for case in cases)
    assert set(counts.values()) == {len(SEEDS)}
    assert len(counts) == (1 + len(BASELINES) + len(KNOBS_SCALED)) * len(COMPARED)


def test_in_the_crowd_venus_runs_alone_with_two_hundred_rollouts_at_once() -> None:
    (case,) = all_cases((CROWD,), (1,), STEPS)
    assert case.entry is VENUS
    live = CROWD.groups_open_max * CROWD.group_size
    assert LIVE_MIN <= live <= CROWD.slots


def test_mechanisms_are_switched_off_at_pressure_alone_behind_the_strategies() -> None:
    cases = all_cases((LOW, PRESSURE), (1,), STEPS)
    ablated = [case for case in cases if case.entry.off]
    assert {case.cell for case in ablated} == {PRESSURE}
    assert sorted(case.entry.off[0] for case in ablated) == sorted(Mechanism)
    assert cases[-len(ablated) :] == ablated


def test_another_strategy_goes_first_for_each_seed() -> None:
    firsts = {all_cases((LOW,), (seed,), STEPS)[0].entry.name for seed in SEEDS}
    assert len(firsts) == len(SEEDS)


def test_cells_differ_in_pages_alone_so_that_they_train_the_same_groups() -> None:
    assert with_engines(PRESSURE, 1) == PRESSURE
    specs = [
        {**spec_of(case, "m"), "name": ""}
        for cell in COMPARED
        for case in all_cases((cell,), (1,), STEPS)
        if case.entry is VENUS
    ]
    assert len(specs) == len(COMPARED)
    assert all(spec == specs[0] for spec in specs)
    assert with_engines(PRESSURE, 2).kv_pages * 2 == PRESSURE.kv_pages


def test_baselines_bring_their_own_bounds_and_programs_take_those_of_the_cell() -> None:
    assert bounds_of(published(StrategyName.SLIME_SYNC), 8) == (1.0, 0)
    assert bounds_of(published(StrategyName.SLIME_ASYNC), 8) == (8.0, STALENESS_MAX)
    assert bounds_of(published(StrategyName.ROLLFLASH), 8) == (2.0, 1)
    programs = published(StrategyName.THUNDERAGENT_PAPER)
    assert bounds_of(programs, 8) == bounds_of(VENUS, 8)
    assert is_within(programs)
    assert not is_within(published(StrategyName.ROLLFLASH))


def test_intervals_are_cut_within_what_a_knob_takes() -> None:
    for strategy in KNOBS_SCALED:
        ranges = {knob.name: knob for knob in KNOBS[strategy]}
        for name, value in scaled(strategy).knobs:
            assert ranges[name].accepts(value)
            assert value == pytest.approx(ranges[name].default / 10)


def test_every_spec_is_one_that_the_platform_reads() -> None:
    for case in [*all_cases(CELLS, (1,), STEPS), *quick_cases()]:
        JobSpec.model_validate(spec_of(case, "tiny-calc"))


def test_a_key_tells_runs_apart_that_are_not_the_same() -> None:
    cases = [*all_cases(CELLS, SEEDS, STEPS), *quick_cases()]
    assert len({key_of(case) for case in cases}) == len(cases)


def drawn_group(task: int, size: int) -> RecordedGroup:
    """A group of drawn episodes with answers of mean length."""
    answer = round(model.ANSWER_TOKENS)
    members = []
    for member in range(size):
        turns, context, new = [], 0, Shape().prompt + WRAPPING
        gaps = gaps_of(Shape(), f"train-{task:04d}", Random(task * size + member))
        for said in [*(len(gap.text) + WRAPPING for gap in gaps), 0]:
            context += new
            turns.append(RecordedTurn(context, new, answer, 0.1, 0.0))
            context, new = context + answer, said
        members.append(RecordedRollout("host", 0.0, 1.0, tuple(turns), None))
    return RecordedGroup(task, 0.0, 1.0, 1.0, tuple(members))


WRAPPING = 2
"""Characters around a message."""


def test_drawn_contexts_make_the_pressure_that_the_cells_are_for_and_each_fits() -> None:
    groups = [drawn_group(task, PRESSURE.group_size) for task in range(64)]
    found = {
        cell.name: pressure(groups, cell.groups_open_max, cell.kv_pages, cell.engines)
        for cell in CELLS
    }
    assert max(found["low"], found["crowd"]) < LOW_PRESSURE_MAX
    assert found["pressure"] > PRESSURE_MIN * 1.1
    longest = max(
        one.turns[-1].prompt_tokens + one.turns[-1].output_tokens
        for group in groups
        for one in group.rollouts
    )
    assert longest * 1.2 < PRESSURE.context_tokens <= PRESSURE.kv_pages * PAGE_TOKENS
