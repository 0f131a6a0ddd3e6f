"""The chore of a plan on a recorded job, and the machines that it assumes."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from domain.ids import ProjectId
from domain.spec_parts import EngineRange
from infra.names import PLAN
from infra.settings import Settings
from simulation.plan import PoolTooSmall
from simulation.recorded import RecordedGroup, RecordedJob
from stores.blobs import Blobs
from stores.system.operations import TakenOperation
from stores.system.recorded import EngineSizes, RecordedOf
from stores.unit_of_work import Database
from tests.unit.simulation import recorded_jobs
from workers.chores import plans
from workers.chores.handling import ChoreFailed, ChoreTools
from workers.chores.plan_records import sizes_of
from workers.chores.plans import CPU_S_MAX, WALL_S_MAX, Budget, engines_of

SPEC: dict[str, Any] = {
    "model": {"base": "m"},
    "environments": [{"ref": "calc@1", "max_turns": 4}],
    "rollout": {"group_size": 2, "groups_per_batch": 2},
    "scheduling": {"max_staleness": 0, "order": "oldest", "async_ratio": 1.0},
    "resources": {"rollout_gpus": {"min": 1, "max": 2}},
    "stop": {"max_steps": 3},
}


def pair(group: RecordedGroup) -> RecordedGroup:
    """With a second member of another reward."""
    (one,) = group.rollouts
    return replace(group, rollouts=(replace(one, reward=0.0), replace(one, reward=1.0)))


def answer(monkeypatch: pytest.MonkeyPatch, **asked: Any) -> dict[str, Any]:
    """What the chore says of a job of three steps, whatever is asked."""
    made = recorded_jobs.job()
    job = replace(made, groups=tuple(map(pair, made.groups)))

    async def read(*_: object) -> tuple[RecordedOf, RecordedJob]:
        return RecordedOf("job_1", "att_1", "succeeded", SPEC, 0, {}), job

    monkeypatch.setattr(plans, "read_recorded", read)
    request = {"job_id": "job_1", "spec": SPEC, "steps": 3, "replicas": 4, "seed": 0, **asked}
    tools = ChoreTools(Settings.from_env({}), cast("Database", None), Blobs(Path("/").as_uri()))
    taken = TakenOperation("plan_1", ProjectId("prj_1"), PLAN, request)
    return cast("dict[str, Any]", asyncio.run(plans.plan(tools, taken)))


def test_a_lowered_end_leaves_the_unchanged_run_as_long_as_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = {**SPEC, "stop": {"max_steps": 1}}
    found = answer(monkeypatch, changed=changed, steps=1, unchanged_steps=3)
    assert found["recorded"]["steps"] == found["unchanged"]["steps"] == 3
    assert found["changed"]["steps"] == 1


def test_a_run_over_fewer_steps_than_recorded_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer(monkeypatch, unchanged_steps=2)
    (note,) = [one for one in found["assumptions"] if one["input"] == "unchanged"]
    assert note["detail"].startswith("the first 2 of 3 steps")
    assert found["unchanged"]["steps"] == 2


def test_changed_engines_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {**SPEC, "resources": {"rollout_gpus": {"min": 3, "max": 3}}}
    found = answer(monkeypatch, changed=changed, has_engines=True)
    assert (found["unchanged"]["engines"], found["changed"]["engines"]) == (1, 3)


def test_the_changed_figures_hold_the_error_of_the_unchanged_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = answer(monkeypatch, changed=SPEC)
    for name, real in found["recorded"]["figures"].items():
        interval = found["changed"]["figures"][name]
        assert interval["low"] <= real <= interval["high"] * 1.001, name


def test_a_pool_that_holds_no_group_fails_at_once_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ChoreFailed, match="a group needs 2 sandboxes") as failed:
        answer(monkeypatch, changed=SPEC, pool={"sandboxes": 2})
    assert failed.value.code == "never_fits"


def test_a_forecast_without_time_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "CPU_S_MAX", 0.0)
    with pytest.raises(ChoreFailed, match="0 of 4 simulated runs") as failed:
        answer(monkeypatch)
    assert failed.value.code == "plan_too_large"


def test_no_more_engines_are_used_than_the_spec_takes_and_that_is_said() -> None:
    engines, (note,) = engines_of(EngineRange(1, 4), 8)
    assert engines == 4
    assert (note["input"], note["source"]) == ("engines", "chosen")
    assert note["detail"].startswith("4 of 8")


@pytest.mark.parametrize(
    ("allowed", "asked", "otherwise", "engines"),
    [
        (EngineRange(1, 4), 3, 2, 3),
        (EngineRange(1, 4), None, 2, 2),
        (EngineRange(1, 4), None, 8, 4),
        (EngineRange(3, 3), None, None, 3),
        (None, None, 2, 2),
        (None, 8, 2, 8),
    ],
)
def test_engines_are_those_asked_for_or_there(
    allowed: EngineRange | None, asked: int | None, otherwise: int | None, engines: int
) -> None:
    assert engines_of(allowed, asked, otherwise)[0] == engines


def test_a_pool_below_the_least_is_too_small() -> None:
    with pytest.raises(PoolTooSmall, match="needs 3 engine hosts; the pool has 2"):
        engines_of(EngineRange(3, 4), 2)


def test_an_engine_is_as_large_as_it_reported() -> None:
    settings = Settings.from_env({})
    assert sizes_of(settings, EngineSizes(slots=8, kv_pages=1_152)) == (8, 18_432)
    assert sizes_of(settings, None) == (64, 4_096 * 16)


@pytest.mark.parametrize(
    ("cpu_s", "clock_s", "said"),
    [
        (CPU_S_MAX, CPU_S_MAX, "in 60 s of CPU; ask for fewer steps"),
        (7.0, WALL_S_MAX, "in 110 s by the clock, of which it had a core for 7 s: .* is busy"),
    ],
)
def test_a_forecast_without_time_says_which_limit_it_reached(
    cpu_s: float, clock_s: float, said: str
) -> None:
    cpu, clock = iter((3.0, 3.0 + cpu_s, 3.0 + cpu_s)), iter((9.0, 9.0 + clock_s, 9.0 + clock_s))
    budget = Budget(lambda: next(cpu), lambda: next(clock))
    assert not budget.is_left()
    assert re.search(said, budget.spent())
