"""What is run, and in which order."""

from collections import Counter

import pytest

from benchmarks.e2e.cases import (
    BASELINES,
    CELLS,
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
from benchmarks.e2e.records import key_of
from benchmarks.schedule.cases import VENUS
from domain.knobs import KNOBS
from domain.plan import Mechanism, StrategyName
from venusrl.models.job_spec import JobSpec


def test_every_block_has_venus_and_each_baseline_once_per_seed() -> None:
    cases = [case for case in all_cases(CELLS, SEEDS, STEPS) if not case.entry.off]
    counts = Counter((case.cell.name, case.entry.name) for case in cases)
    assert set(counts.values()) == {len(SEEDS)}
    assert len(counts) == (1 + len(BASELINES) + len(KNOBS_SCALED)) * len(CELLS)


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
        for cell in CELLS
        for case in all_cases((cell,), (1,), STEPS)
        if case.entry is VENUS
    ]
    assert len(specs) == len(CELLS)
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
