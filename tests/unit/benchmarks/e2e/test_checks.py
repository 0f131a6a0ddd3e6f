"""Checks pass, fail and are missing; the short run's faults."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.e2e.cases import BASELINES, SEEDS
from benchmarks.e2e.checks import all_checks
from benchmarks.e2e.quick import FASTEST_MIN, faults_of
from benchmarks.e2e.records import Run
from benchmarks.e2e.tables import table_of
from tests.unit.benchmarks.e2e.small import run

NAMES = [f"{strategy.value} published" for strategy in BASELINES]
FAST = dict(zip(NAMES, (2.5, 2.1, 2.2, 1.3), strict=True))


def runs_of(ratios: Mapping[str, float], seeds: Sequence[int] = SEEDS) -> list[Run]:
    found = []
    for seed in seeds:
        for cell, pressure in (("low", 0.4), ("pressure", 2.5)):
            found.append(run(seed=seed, cell=cell, pressure=pressure))
            found += [
                run(name, 10.0 * ratio, seed=seed, cell=cell, pressure=pressure)
                for name, ratio in ratios.items()
            ]
    return found


CROWD = run(cell="crowd", live_max=204, work="of its own")


def verdicts(runs: Sequence[Run], simulated: Mapping[str, float] | None = None) -> dict[str, str]:
    return {
        check.what: check.verdict for check in all_checks(runs, table_of(runs, simulated or {}))
    }


def verdict(found: Mapping[str, str], words: str) -> str:
    (one,) = [said for what, said in found.items() if words in what]
    return one


def test_everything_passes_where_it_is_as_fast_as_asked_and_as_simulated() -> None:
    runs = [*runs_of(FAST), CROWD]
    found = verdicts(runs, {one.key: one.step_s / 2 for one in runs})
    assert set(found.values()) == {"pass"}


def test_what_the_coordinator_costs_is_asked_of_a_crowd() -> None:
    assert verdict(verdicts(runs_of(FAST)), "coordinator") == "missing"
    assert verdict(verdicts([replace(CROWD, live_max=199)]), "coordinator") == "FAIL"
    assert verdict(verdicts([replace(CROWD, decision_share=0.011)]), "coordinator") == "FAIL"


def test_the_best_of_the_trainers_decides_the_speed_up() -> None:
    found = verdicts(runs_of({**FAST, NAMES[1]: 1.9}))
    assert verdict(found, "over the best of slime-sync") == "FAIL"
    assert verdict(found, "thunderagent-paper") == "pass"


def test_a_baseline_that_is_faster_anywhere_fails_the_parity() -> None:
    found = verdicts(runs_of({**FAST, NAMES[3]: 0.95}))
    assert verdict(found, "against the best within a and m: low") == "FAIL"


def test_a_baseline_that_holds_more_groups_than_the_cell_allows_stands_beside_the_parity() -> None:
    runs = [*runs_of(FAST), run("aimd published", 9.0, cell="low", pressure=0.4, is_within=False)]
    (check,) = [
        one for one in all_checks(runs, table_of(runs, {})) if "within a and m: low" in one.what
    ]
    assert check.verdict == "pass"
    assert "0.90" in check.reached


def test_a_baseline_with_scaled_intervals_counts_for_the_parity_alone() -> None:
    found = verdicts(runs_of({**FAST, "slime-async scaled": 0.9}))
    assert verdict(found, "against the best within a and m: pressure") == "FAIL"
    assert verdict(found, "over the best of slime-sync") == "pass"


def test_without_all_seeds_or_baselines_a_check_is_missing_and_not_passed() -> None:
    found = verdicts(runs_of(FAST, seeds=(1,)))
    assert verdict(found, "over the best of slime-sync") == "missing"
    part = {name: ratio for name, ratio in FAST.items() if name != NAMES[0]}
    assert verdict(verdicts(runs_of(part)), "over the best of slime-sync") == "missing"
    assert set(verdicts([]).values()) == {"missing"}


def test_another_order_or_a_far_ratio_in_the_simulator_fails() -> None:
    runs = runs_of(FAST)
    turned = {one.key: one.step_s for one in runs}
    turned |= {one.key: 100.0 for one in runs if one.entry == NAMES[3]}
    found = verdicts(runs, turned)
    assert verdict(found, "order of strategies, real and simulated: pressure") == "FAIL"
    assert verdict(found, "off the simulated: pressure") == "FAIL"


def test_other_work_under_one_strategy_is_found_unless_it_dropped_groups() -> None:
    runs = [run(), run(NAMES[0], 20.0, work="bb")]
    assert verdict(verdicts(runs), "trained the same") == "FAIL"
    runs = [run(), run(NAMES[0], 20.0, work="bb", dropped_groups=1)]
    assert verdict(verdicts(runs), "trained the same") == "pass"


def test_a_failed_try_or_too_little_pressure_is_shown() -> None:
    found = verdicts([run(failed_tries=1, pressure=1.9)])
    assert verdict(found, "ended whole") == "FAIL"
    assert verdict(found, "device pages: pressure") == "FAIL"


def test_the_short_run_finds_what_did_not_end_and_who_is_behind() -> None:
    venus, sync = run(), run(NAMES[0], 20.0)
    assert faults_of([venus, sync], 2) == []
    assert len(faults_of([venus, sync], 3)) == 1
    assert faults_of([sync], 1) == ["venus has no run"]
    assert len(faults_of([venus, run(NAMES[0], 10.0 * FASTEST_MIN * 0.99)], 2)) == 1
    assert len(faults_of([venus, run(NAMES[0], 20.0, work="bb")], 2)) == 1
    assert len(faults_of([run(commits_s=[1.0]), sync], 2)) == 1
