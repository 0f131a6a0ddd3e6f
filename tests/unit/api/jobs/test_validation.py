"""What a submitted spec becomes, without a database."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from api.jobs.hints import fields_at
from api.jobs.validation import Outcome, Surroundings, unstorable, validate
from api.system.registry import models
from domain import engine
from domain.plan import Order
from infra.settings import Settings
from scheduler.spec import read_spec
from venusrl.models import common
from venusrl.models.job_spec import JobSpec
from workers.rollout.job_spec import read_spec as read_for_rollouts
from workers.trainer.config import read_spec as read_for_training

SPEC: dict[str, Any] = {
    "name": "j",
    "model": {"base": "tiny-calc"},
    "environments": [{"ref": "calc"}],
}


@dataclass
class Version:
    """A version's row."""

    version: int = 1
    state: str = "ready"
    splits: dict[str, int] = field(default_factory=lambda: {"train": 10, "test": 5})
    manifest: dict[str, Any] = field(default_factory=dict)
    is_draft: bool = False
    yanked_at: str | None = None
    yank_reason: str | None = None


def look(**changes: Any) -> Outcome:
    """Validate the smallest spec with changes."""
    versions = [Version(1), Version(2), Version(3, "failed"), Version(4, "validating")]
    around = Surroundings(models(), {"calc": versions}, Settings.from_env({}))
    return validate({**SPEC, **changes}, around)


def values(outcome: Outcome) -> dict[str, Any]:
    """Resolved values by pointer."""
    return {pointer: value for pointer, value, _ in outcome.resolved}


def test_the_newest_ready_version_is_taken() -> None:
    assert values(look())["/environments/0/ref"] == "calc@2"
    pinned = look(environments=[{"ref": "calc@1"}])
    assert "/environments/0/ref" not in values(pinned)
    assert pinned.spec is not None
    assert pinned.spec["environments"][0]["ref"] == "calc@1"


def test_a_synchronous_job_runs_nothing_ahead_and_the_longest_first() -> None:
    found = values(look(scheduling={"max_staleness": 0}))
    assert found["/scheduling/async_ratio"] == 1.0
    assert found["/scheduling/order"] == "longest"
    assert values(look())["/scheduling/order"] == "oldest"


def test_the_clip_range_follows_the_loss() -> None:
    pointer = "/algorithm/loss/clip_high"
    assert values(look())[pointer] == 0.28
    grpo = look(algorithm={"loss": {"type": "grpo", "clip_low": 0.1}})
    assert values(grpo)[pointer] == 0.1


def test_what_the_user_chose_is_not_resolved() -> None:
    outcome = look(
        optimizer={"lr": 1e-3},
        scheduling={"order": "nearest", "async_ratio": 2.0},
        resources={"rollout_gpus": {"min": 1, "max": 1}},
        rollout={"on_failure": {"min_group_size": 3}},
    )
    chosen = {
        "/optimizer/lr",
        "/scheduling/order",
        "/scheduling/async_ratio",
        "/resources/rollout_gpus/max",
        "/rollout/on_failure/min_group_size",
    }
    assert not chosen & set(values(outcome))
    assert "/algorithm/loss/clip_high" in values(outcome)


def test_no_correction_is_allowed_only_where_nothing_is_stale() -> None:
    none = {"correction": {"type": "none"}}
    assert look(algorithm=none).spec is None
    assert look(algorithm=none, scheduling={"max_staleness": 0}).spec is not None


def test_an_evaluation_on_the_training_split_is_flagged() -> None:
    outcome = look(evaluation={"split": "train"})
    assert [(one.code, one.severity) for one in outcome.findings] == [("not_held_out", "warning")]
    assert outcome.spec is not None


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (("rollout", "sampling"), "temperature", 1e-39),
        (("rollout", "sampling"), "top_p", 1e-46),
        (("evaluation", "sampling"), "temperature", 1e-320),
        (("evaluation", "sampling"), "top_p", 1e-46),
    ],
)
def test_a_number_that_no_engine_samples_with_is_a_finding(
    path: tuple[str, str], name: str, value: float
) -> None:
    outcome = look(**{path[0]: {path[1]: {name: value}}})
    pointer = f"/{path[0]}/{path[1]}/{name}"
    assert pointer in {one.pointer for one in outcome.findings if one.severity == "error"}


def test_engine_and_wire_agree_about_the_least_temperature_and_nucleus() -> None:
    assert (common.TEMPERATURE_MIN, common.TOP_P_MIN) == (engine.TEMPERATURE_MIN, engine.TOP_P_MIN)
    for name, fits in (("temperature", 0.0), ("temperature", 1e-4), ("top_p", 1e-4)):
        assert look(evaluation={"sampling": {name: fits}}).findings == look().findings


def test_a_normalised_spec_is_its_own_normal_form() -> None:
    first = look()
    assert first.spec is not None
    again = look(**first.spec)
    assert again.spec == first.spec
    assert again.resolved == []


def test_scheduler_trainer_and_rollout_hosts_read_the_normalised_spec() -> None:
    spec = look(seed=3, rollout={"group_size": 4, "groups_per_batch": 2}).spec
    assert spec is not None
    stored = json.loads(json.dumps(spec))
    read = read_spec(stored)
    assert (read.seed, read.rollout.group_size, read.scheduling.order) == (3, 4, Order.OLDEST)
    assert read.rollout.on_failure.min_group_size == 2
    assert read_for_training(stored).optimizer.lr == 3e-4
    assert read_for_rollouts(stored, [{}], 96).rollout.sampling.max_tokens_per_turn == 2048


def test_fields_are_known_at_every_depth() -> None:
    assert fields_at([]) == sorted(JobSpec.model_fields)
    assert "temperature" in fields_at(["rollout", "sampling"])
    assert "ref" in fields_at(["environments", 0])
    assert "tasks" in fields_at(["evaluation"])
    assert "url" in fields_at(["judges", "any name"])
    assert "command" in fields_at(["environments", 0, "harness"])
    assert fields_at(["name"]) == fields_at(["nothing", "at", "all"]) == []


@pytest.mark.parametrize(
    ("value", "pointer", "code"),
    [
        ({"a": ["x", "y\x00"]}, "/a/1", "bad_text"),
        ({"a": "\ud800"}, "/a", "bad_text"),
        ({"\x00": 1}, "", "bad_text"),
        ({"a/b": {"c": math.nan}}, "/a~1b/c", "not_finite"),
        ({"a": -math.inf}, "/a", "not_finite"),
    ],
)
def test_what_no_column_holds_is_found_at_its_place(value: Any, pointer: str, code: str) -> None:
    (finding,) = unstorable(value)
    assert (finding.pointer, finding.code) == (pointer, code)


def test_nesting_is_bounded() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    assert [one.code for one in unstorable(deep)] == ["too_deep"]


def test_ordinary_values_are_storable() -> None:
    assert unstorable({"a": [1, 2.5, None, True, "text", {"b": "ünï\U0001f600"}]}) == []
