"""What validation finds: what is not available yet, contradictions, what never fits, near names."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.jobs.availability import CODE, RULES
from api.jobs.checks import APPENDING_RENDERERS
from api.jobs.outcome import Outcome, Surroundings
from api.jobs.validation import validate
from api.system.registry import BUILTIN, models
from infra.settings import Settings
from tests.unit.api.jobs.test_validation import SPEC, Version, look, values
from venusrl.env.host.manifest import EnvironmentLimits
from venusrl.env.messages import Message
from workers.models.chat import read_chat
from workers.models.chatml import ChatMlFormat, chatml_vocabulary
from workers.models.vocab import read_vocab

NOT_AVAILABLE: dict[str, dict[str, Any]] = {
    "/model/training/type": {
        "model": {"base": "tiny-calc", "training": {"type": "lora", "rank": 8}}
    },
    "/environments/0/harness": {
        "environments": [{"ref": "calc", "harness": {"command": ["python", "agent.py"]}}]
    },
    "/environments/0/resources": {"environments": [{"ref": "calc", "resources": {"cpus": 2}}]},
    "/algorithm/advantage": {"algorithm": {"advantage": "python:adv.py:mine"}},
    "/algorithm/task_sampling": {"algorithm": {"task_sampling": "learning_yield"}},
    "/checkpoints/export": {"checkpoints": {"export": ["peft"]}},
    "/resources/trainer_gpus": {"resources": {"trainer_gpus": 2}},
    "/resources/tensor_parallel": {"resources": {"tensor_parallel": 2}},
    "/resources/placement": {"resources": {"placement": "colocated"}},
    "/budget/max_cost_usd": {"budget": {"max_cost_usd": 10}},
    "/retention/trajectories": {"retention": {"trajectories": "none"}},
    "/retention/days": {"retention": {"days": 30}},
    "/trackers/0": {"trackers": [{"type": "wandb"}]},
    "/judges/a~1b/base": {"judges": {"a/b": {"base": "tiny-calc"}}},
    "/judges/j/max_cost_usd": {
        "judges": {"j": {"url": "https://j.example/v1", "model": "m", "max_cost_usd": 1.0}}
    },
}


def only(outcome: Outcome) -> tuple[str, str, str]:
    """Pointer, code and severity of the single finding."""
    (one,) = outcome.findings
    return one.pointer, one.code, one.severity


@pytest.mark.parametrize("pointer", NOT_AVAILABLE)
def test_what_cannot_be_had_yet_is_refused_with_what_to_use(pointer: str) -> None:
    outcome = look(**NOT_AVAILABLE[pointer])
    assert only(outcome) == (pointer, CODE, "error")
    assert outcome.findings[0].hint
    assert outcome.spec is None


def test_every_rule_has_its_case() -> None:
    assert {rule.pointer for rule in RULES} <= set(NOT_AVAILABLE)


def test_environments_of_evaluations_are_held_to_the_same_rules() -> None:
    other = {"ref": "calc", "harness": {"command": ["x"]}, "resources": {"cpus": 1}}
    found = look(evaluation={"environments": [other]}).findings
    assert [(one.pointer, one.code) for one in found] == [
        ("/evaluation/environments/0/harness", CODE),
        ("/evaluation/environments/0/resources", CODE),
    ]


def test_the_whole_form_with_its_defaults_is_valid() -> None:
    outcome = look(
        model={"base": "tiny-calc", "training": {"type": "full"}, "context_tokens": None,
               "on_history_rewrite": "segment"},
        environments=[{"ref": "calc@2", "weight": 1.0, "config": {}, "split": "train",
                       "filter": None, "limit": None, "shuffle": True, "harness": "chat",
                       "max_turns": None, "wall_s": None, "resources": None}],
        judges={},
        evaluation={"every_steps": 20, "environments": [], "split": "test", "tasks": 200,
                    "rollouts_per_task": 4, "sampling": {"temperature": 1.0}, "select_best": None},
        checkpoints={"every_steps": 20, "keep_last": 2, "keep_best": 1, "export": ["safetensors"]},
        resources={"trainer_gpus": "auto", "rollout_gpus": {"min": 1, "max": "auto"},
                   "tensor_parallel": "auto", "placement": "auto", "priority": "normal"},
        stop={"max_steps": 100, "max_epochs": None, "target_eval": None},
        budget={"max_cost_usd": None, "max_wall_hours": None, "warn_at": 0.8,
                "on_limit": "pause_with_checkpoint"},
        retention={"trajectories": "all", "days": None},
        secrets={}, trackers=[], labels={},
    )  # fmt: skip
    assert outcome.findings == []
    assert outcome.spec is not None
    assert "auto" not in json.dumps(outcome.spec)


def test_each_resolved_value_is_explained_in_the_spec_itself() -> None:
    outcome = look()
    assert outcome.spec is not None
    said = [(one["pointer"], one["value"], one["reason"]) for one in outcome.spec["resolved"]]
    assert said == outcome.resolved
    assert all(reason for _, _, reason in said)


def test_a_reason_whose_value_was_changed_goes() -> None:
    first = look().spec
    assert first is not None
    again = look(**{**first, "optimizer": {**first["optimizer"], "lr": 1e-5}}).spec
    assert again is not None
    former = {one["pointer"] for one in first["resolved"]}
    assert {one["pointer"] for one in again["resolved"]} == former - {"/optimizer/lr"}


def test_open_limits_come_from_model_and_environment() -> None:
    found = values(look())
    defaults = EnvironmentLimits()
    assert found["/model/context_tokens"] == 96
    assert found["/environments/0/max_turns"] == defaults.max_turns
    assert found["/environments/0/wall_s"] == defaults.wall_s


@pytest.mark.parametrize(
    ("changes", "pointer", "code", "severity"),
    [
        ({"budget": {"max_wall_hours": 0.1}}, "/budget/max_wall_hours", "lifetime", "error"),
        ({"environments": [{"ref": "calc", "wall_s": 5}]},
         "/environments/0/wall_s", "lifetime", "warning"),
        ({"optimizer": {"warmup_steps": 101}}, "/optimizer/warmup_steps", "lifetime", "warning"),
        ({"scheduling": {"max_staleness": 0, "async_ratio": 2.0}},
         "/scheduling/async_ratio", "no_effect", "warning"),
        ({"model": {"base": "tiny-calc", "training": {"rank": 8}}},
         "/model/training/rank", "no_effect", "error"),
        ({"secrets": {"TOKEN": "hub"}}, "/secrets/TOKEN", "unknown_secret", "error"),
        ({"model": {"base": "hf:acme/model@main"}}, "/model/base", "unknown_model", "error"),
    ],
)  # fmt: skip
def test_contradictions_are_found_at_their_place(
    changes: dict[str, Any], pointer: str, code: str, severity: str
) -> None:
    assert only(look(**changes)) == (pointer, code, severity)


def test_a_lower_rollout_limit_makes_a_short_budget_fit() -> None:
    outcome = look(budget={"max_wall_hours": 0.1}, environments=[{"ref": "calc", "wall_s": 120}])
    assert outcome.findings == []


def around(**environ: str) -> Surroundings:
    """A project on an installation with these settings."""
    return Surroundings(models(), {"calc": [Version()]}, Settings.from_env(environ))


@pytest.mark.parametrize(
    ("environ", "changes", "pointer"),
    [
        ({"VENUS_SANDBOXES": "8"}, {"rollout": {"group_size": 8}}, "/rollout/group_size"),
        ({"VENUS_SANDBOXES": "8", "VENUS_POOL_NODES": "4"},
         {"rollout": {"group_size": 9}}, "/rollout/group_size"),
        ({"VENUS_SANDBOXES": "9"}, {"evaluation": {"rollouts_per_task": 9}},
         "/evaluation/rollouts_per_task"),
        ({"VENUS_POOL_TRAINERS": "0"}, {}, "/resources/trainer_gpus"),
        ({"VENUS_POOL_ENGINES": "1"}, {"resources": {"rollout_gpus": {"min": 2}}},
         "/resources/rollout_gpus/min"),
        ({"VENUS_CONTEXT_TOKENS": "64"},
         {"model": {"base": "tiny-calc", "context_tokens": 96}}, "/model/context_tokens"),
        ({"VENUS_KV_PAGES": "4"}, {}, "/model/context_tokens"),
    ],
)  # fmt: skip
def test_what_the_empty_pool_could_not_hold_is_refused(
    environ: dict[str, str], changes: dict[str, Any], pointer: str
) -> None:
    outcome = validate({**SPEC, **changes}, around(**environ))
    assert only(outcome) == (pointer, "never_fits", "error")


def test_near_names_are_offered_for_fields_values_splits_and_secrets() -> None:
    known = replace(around(), secrets=frozenset({"hub-token"}))
    body = {**SPEC, "secrets": {"TOKEN": "hub-tokne"}, "evaluation": {"split": "tets"}}
    hints = {one.pointer: one.hint for one in validate(body, known).findings}
    assert "hub-token" in hints["/secrets/TOKEN"]
    assert "Near: test" in hints["/evaluation/split"]
    typed = {"algorithm": {"advantage": "dr_gpro"}, "budget": {"max_wall_hour": 1}}
    hints = {one.pointer: one.hint for one in look(**typed).findings}
    assert "max_wall_hours" in hints["/budget/max_wall_hour"]
    assert "dr_grpo" in hints["/algorithm/advantage"]
    assert look(loss=1).findings[0].hint


def test_a_mistake_inside_one_of_two_forms_is_found_at_its_place() -> None:
    wrong = look(environments=[{"ref": "calc", "harness": {"comand": ["x"]}}])
    assert {"/environments/0/harness/command", "/environments/0/harness/comand"} <= {
        one.pointer for one in wrong.findings
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": {"lr": "fast"}}, "Learning rate"),
        ({"resources": {"rollout_gpus": 4}}, "max, min"),
        ({"checkpoints": {"export": ["hf"]}}, "Forms in which"),
        ({"environments": [{}]}, "name@version"),
        ({"labels": {"a": 1}}, "For people"),
    ],
)
def test_a_wrong_value_is_told_what_its_field_is_for(changes: dict[str, Any], words: str) -> None:
    (one,) = look(**changes).findings
    assert words in one.hint


def test_a_template_that_may_render_earlier_turns_anew_is_refused() -> None:
    unstable = {"jinja": models()["tiny-calc"].model_copy(update={"renderer": "jinja"})}
    body = {**SPEC, "model": {"base": "jinja"}}
    outcome = validate(body, replace(around(), models=unstable))
    assert only(outcome) == ("/model/base", "template_unstable", "error")


@pytest.mark.parametrize("choice", ["segment", "keep"])
def test_a_template_that_drops_reasoning_is_said_and_the_user_chooses(choice: str) -> None:
    thinking = {"r1": models()["tiny-calc"].model_copy(update={"drops_reasoning": True})}
    body = {**SPEC, "model": {"base": "r1", "on_history_rewrite": choice}}
    outcome = validate(body, replace(around(), models=thinking))
    pointer = "/model/on_history_rewrite"
    assert only(outcome) == (pointer, "template_rewrites_history", "warning")
    assert outcome.spec is not None
    assert outcome.spec["model"]["on_history_rewrite"] == choice


def test_an_environment_that_rewrites_is_not_kept() -> None:
    known = around().environments
    rewriting = replace(known["calc"][-1], manifest={"rewrites_history": True})
    there = replace(around(), environments={**known, "calc": [rewriting]})
    model = {"base": "tiny-calc", "on_history_rewrite": "keep"}
    outcome = validate({**SPEC, "model": model}, there)
    assert only(outcome) == ("/model/on_history_rewrite", "history_rewritten", "error")
    assert validate(SPEC, there).is_valid


def renderers() -> dict[str, Any]:
    """One chat format of each appending renderer, from the models that are built in."""
    chats = {"chatml": ChatMlFormat(chatml_vocabulary())}
    for path in sorted(Path(BUILTIN).glob("*/chat.json")):
        name = str(json.loads(path.read_text())["format"])
        chats[name] = read_chat(path, read_vocab(path.parent / "vocab.json"))  # type: ignore[assignment]
    return chats


def test_appending_renderers_render_a_whole_conversation_as_it_grew() -> None:
    chats = renderers()
    assert set(chats) == APPENDING_RENDERERS
    for name, chat in chats.items():
        said = [Message("user", "1+1"), Message("assistant", "2"), Message("tool", "3")]
        grown = chat.prompt(said[:1])
        answer = chat.prompt(said[:2])[len(grown) :]
        end = answer.index(chat.stop_token_ids[0]) + 1
        for sampled in (answer[:end], answer[: end - 1]):
            whole = (*grown, *sampled, *chat.follow_up(sampled, said[2:]))
            assert whole == chat.prompt(said), name
