"""Strategies, switches and knobs of a spec."""

import typing
from typing import Any

import pytest

from api.jobs.outcome import Outcome
from api.jobs.scheduling import UNBOUNDED_STALENESS
from domain import knobs
from domain.plan import Mechanism, StrategyName
from scheduler.spec import read_spec
from tests.unit.api.jobs.test_validation import look, values
from venusrl.models import spec_training
from venusrl.models.job_spec import JobSpec


def found(outcome: Outcome) -> list[tuple[str, str, str]]:
    return [(one.pointer, one.code, one.severity) for one in outcome.findings]


def scheduling(strategy: str, **changes: Any) -> Outcome:
    return look(scheduling={"strategy": strategy, **changes})


def test_a_spec_knows_every_strategy_and_every_mechanism() -> None:
    assert typing.get_args(spec_training.Strategy) == tuple(name.value for name in StrategyName)
    assert typing.get_args(spec_training.Mechanism) == tuple(name.value for name in Mechanism)


@pytest.mark.parametrize("strategy", list(StrategyName))
def test_every_strategy_is_accepted_with_its_defaults_as_knobs(strategy: StrategyName) -> None:
    staleness = UNBOUNDED_STALENESS if strategy is StrategyName.SLIME_ASYNC else 8
    defaults = {knob.name: knob.default for knob in knobs.KNOBS[strategy]}
    outcome = scheduling(strategy.value, max_staleness=staleness, knobs=defaults)
    assert outcome.is_valid, outcome.findings


def test_the_plan_carries_strategy_switches_and_knobs() -> None:
    outcome = scheduling("venus", off=["migration", "tiers"])
    assert outcome.spec is not None
    assert read_spec(outcome.spec).scheduling.off == (Mechanism.MIGRATION, Mechanism.TIERS)
    outcome = scheduling("aimd", knobs={"growth": 1.5, "cancels": 0})
    assert outcome.spec is not None
    read = read_spec(outcome.spec).scheduling
    assert (read.strategy, dict(read.knobs)) == (
        StrategyName.AIMD,
        {"growth": 1.5, "cancels": 0.0},
    )


def test_a_stored_spec_without_switches_and_knobs_is_read() -> None:
    outcome = look()
    assert outcome.spec is not None
    older = {k: v for k, v in outcome.spec["scheduling"].items() if k not in ("off", "knobs")}
    read = read_spec({**outcome.spec, "scheduling": older}).scheduling
    assert (read.off, dict(read.knobs)) == ((), {})


def test_an_unknown_knob_is_found_with_near_names() -> None:
    outcome = scheduling("aimd", knobs={"groth": 1.5})
    assert found(outcome) == [("/scheduling/knobs/groth", "unknown_knob", "error")]
    assert "growth" in outcome.findings[0].hint


def test_a_knob_of_another_strategy_is_unknown() -> None:
    outcome = scheduling("venus", knobs={"growth": 1.5})
    assert found(outcome) == [("/scheduling/knobs/growth", "unknown_knob", "error")]


@pytest.mark.parametrize("value", [0.5, 3.0])
def test_a_knob_outside_its_range_is_refused(value: float) -> None:
    outcome = scheduling("aimd", knobs={"growth": value})
    assert found(outcome) == [("/scheduling/knobs/growth", "out_of_range", "error")]


def test_a_switch_is_a_whole_number() -> None:
    outcome = scheduling("thunderagent-paper", knobs={"decay": 0.5})
    assert found(outcome) == [("/scheduling/knobs/decay", "out_of_range", "error")]


@pytest.mark.parametrize(
    ("strategy", "changes", "expected"),
    [
        ("slime-sync", {"max_staleness": 0}, []),
        ("slime-sync", {}, []),
        ("slime-sync", {"max_staleness": 2},
         [("/scheduling/max_staleness", "no_effect", "warning")]),
        ("slime-sync", {"max_staleness": 0, "async_ratio": 2.0},
         [("/scheduling/async_ratio", "no_effect", "warning")]),
        ("slime-sync", {"max_staleness": 1, "knobs": {"over_sampling": 2.0}}, []),
        ("slime-sync", {"max_staleness": 0, "knobs": {"over_sampling": 2.0}},
         [("/scheduling/knobs/over_sampling", "no_effect", "warning")]),
        ("slime-async", {}, [("/scheduling/max_staleness", "unbounded_staleness", "error")]),
        ("slime-async", {"max_staleness": 64}, []),
        ("slime-bounded", {"max_staleness": 1, "knobs": {"lag_max": 2.0}},
         [("/scheduling/knobs/lag_max", "no_effect", "warning")]),
        ("rollflash", {"knobs": {"async_ratio": 3.0}},
         [("/scheduling/knobs/async_ratio", "no_effect", "warning")]),
        ("oracle", {}, [("/scheduling/strategy", "no_effect", "warning")]),
        ("aimd", {"off": ["residency", "streaming"]},
         [("/scheduling/off/0", "no_effect", "warning")]),
        ("longest", {"off": ["priority"]}, []),
        ("venus", {"off": ["tiers", "migration", "tiers"]},
         [("/scheduling/off/2", "no_effect", "warning")]),
        ("venus", {"off": ["predictor"]}, [("/scheduling/off/0", "no_effect", "warning")]),
        ("venus", {"off": ["predictor"], "order": "longest"}, []),
        ("venus", {"off": ["predictor"], "max_staleness": 0}, []),
        ("random", {"off": ["predictor"]}, [("/scheduling/off/0", "no_effect", "warning")]),
        ("aimd", {"order": "longest"}, [("/scheduling/order", "no_effect", "warning")]),
        ("random", {"order": "nearest"}, [("/scheduling/order", "no_effect", "warning")]),
        ("venus", {"order": "nearest"}, []),
        ("rollflash", {"async_ratio": 2.0, "knobs": {"async_ratio": 1}}, []),
        ("rollflash", {"async_ratio": 2.5, "knobs": {"async_ratio": 1}},
         [("/scheduling/async_ratio", "no_effect", "warning")]),
        ("rollflash", {"knobs": {"env_groups": 7}},
         [("/scheduling/knobs/env_groups", "knobs_contradict", "error")]),
        ("aimd", {"knobs": {"in_flight_first": 32, "context_tokens": 4096}},
         [("/scheduling/knobs/context_tokens", "no_effect", "warning")]),
        ("aimd", {"knobs": {"grow_below": 0.95, "soft_usage": 0.9, "hard_usage": 0.85}},
         [("/scheduling/knobs/grow_below", "knobs_contradict", "error"),
          ("/scheduling/knobs/soft_usage", "knobs_contradict", "error")]),
        ("aimd", {"knobs": {"soft_usage": 0.65}},
         [("/scheduling/knobs/soft_usage", "knobs_contradict", "error")]),
        ("aimd", {"knobs": {"in_flight_min": 64, "in_flight_max": 32}},
         [("/scheduling/knobs/in_flight_min", "knobs_contradict", "error")]),
        ("ttl", {"knobs": {"ttl_max_s": 1}},
         [("/scheduling/knobs/ttl_max_s", "knobs_contradict", "error")]),
        ("random", {"off": ["residency"]}, []),
    ],
)  # fmt: skip
def test_combinations_that_do_not_fit_are_found(
    strategy: str, changes: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    assert found(scheduling(strategy, **changes)) == expected


def test_an_over_sampled_batch_opens_the_ratio_that_it_needs() -> None:
    outcome = scheduling("slime-sync", max_staleness=1, knobs={"over_sampling": 2.0})
    assert values(outcome)["/scheduling/async_ratio"] == 2.0


def test_a_strategy_with_an_order_of_its_own_gets_none_of_the_jobs() -> None:
    outcome = scheduling("slime-sync", max_staleness=0)
    assert values(outcome)["/scheduling/order"] == "oldest"


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("slime-sync", {"max_staleness": 1, "knobs": {"over_sampling": 1.5}}),
        ("slime-sync", {"max_staleness": 0}),
        ("rollflash", {"knobs": {"async_ratio": 0}}),
        ("rollflash", {"knobs": {"env_groups": 256}}),
        ("longest", {"max_staleness": 0}),
    ],
)
def test_a_normal_form_is_its_own_normal_form(strategy: str, changes: dict[str, Any]) -> None:
    first = scheduling(strategy, **changes)
    assert first.spec is not None
    again = look(**first.spec)
    assert found(again) == []
    assert again.spec == first.spec


def test_values_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="knobs"):
        JobSpec.model_validate(
            {
                "name": "j",
                "model": {"base": "m"},
                "environments": [{"ref": "calc"}],
                "scheduling": {"knobs": {"growth": float("nan")}},
            }
        )
