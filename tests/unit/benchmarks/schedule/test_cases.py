"""Which runs make the benchmark, and in which order."""

from benchmarks.fixed import fixed
from benchmarks.schedule.cases import (
    COMPARED,
    ENDLESS,
    VENUS,
    Entry,
    apart_entries,
    bounds_of,
    is_within,
    main_entry,
    ordered_cases,
    ranked_entries,
)
from domain.plan import Mechanism, StrategyName

MID = fixed().regimes["mid"]


def test_a_baseline_that_brings_no_bounds_runs_as_published_within_the_regimes() -> None:
    entry = main_entry(StrategyName.TTL, MID)
    assert (entry.variant, bounds_of(entry, MID, 24)) == ("published", (1.5, 2))


def test_a_pool_without_bound_is_bound_in_the_comparison_and_printed_apart_without() -> None:
    entry = main_entry(StrategyName.SLIME_ASYNC, MID)
    assert (entry.variant, bounds_of(entry, MID, 24)) == ("within", (1.5, 2))
    apart = next(one for one in apart_entries(MID) if one.strategy is StrategyName.SLIME_ASYNC)
    assert bounds_of(apart, MID, 24) == (24.0, 24)
    assert not is_within(apart, MID)


def test_the_synchronous_baseline_is_within_every_regime() -> None:
    for regime in fixed().regimes.values():
        entry = main_entry(StrategyName.SLIME_SYNC, regime)
        assert bounds_of(entry, regime, 24) == (1.0, 0)
        assert is_within(entry, regime)


def test_rollflash_as_published_is_within_a_of_2_and_beyond_1_5() -> None:
    assert main_entry(StrategyName.ROLLFLASH, fixed().regimes["mid-a2"]).variant == "published"
    assert main_entry(StrategyName.ROLLFLASH, MID).variant == "within"


def test_unbounded_staleness_keeps_the_regimes_a() -> None:
    assert bounds_of(ENDLESS, MID, 24) == (1.5, 24)


def test_names_of_entries_are_unique_in_every_cell() -> None:
    for regime in fixed().regimes.values():
        names = [entry.name for _, entry in ranked_entries(regime)]
        assert len(names) == len(set(names))


def test_every_mechanism_is_switched_off_alone_at_mid_and_high() -> None:
    for name in ("mid", "high"):
        entries = [entry for _, entry in ranked_entries(fixed().regimes[name])]
        off = {entry.off for entry in entries if entry.strategy is StrategyName.VENUS}
        assert off >= {(one,) for one in Mechanism}


def test_cheap_cells_and_the_first_seed_come_first_and_many_last() -> None:
    regimes = list(fixed().regimes.values())
    cases = ordered_cases(regimes, (False, True), (1, 2), 24)
    assert cases[0].cell.regime == "low"
    assert cases[0].entry == VENUS
    heavy = [case.cell.regime == "many" for case in cases]
    assert heavy == sorted(heavy)
    usual = [case.seed for case in cases if case.cell.regime != "many"]
    assert usual == sorted(usual)
    assert len({case.key(()) for case in cases}) == len(cases)


def test_a_case_is_known_again_only_on_the_same_code_and_numbers() -> None:
    case = ordered_cases([MID], (False,), (1,), 6)[0]
    assert case.key(("numbers", "code")) == case.key(("numbers", "code"))
    assert case.key(("numbers", "code")) != case.key(("numbers", "other code"))


def test_every_baseline_has_a_run_that_counts_in_every_regime() -> None:
    for regime in fixed().regimes.values():
        within = {entry.strategy for _, entry in ranked_entries(regime) if is_within(entry, regime)}
        assert within >= set(COMPARED)


def test_a_switch_and_a_quality_stand_in_the_name() -> None:
    entry = Entry(StrategyName.VENUS, "normal", off=(Mechanism.TIERS,), quality=0.5)
    assert entry.name == "venus normal without tiers predictor 0.5"
