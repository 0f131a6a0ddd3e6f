"""Fields of the spec that this version knows and cannot honour: refused, each with what to do instead.

A rule goes when what it refuses arrives. Nothing that a user writes is silently without effect.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from api.jobs.outcome import Outcome
from api.jobs.uses import uses_of
from venusrl.models.job_spec import JobSpec
from venusrl.models.spec_rollout import CommandHarness, EnvironmentPart

CODE: Final = "not_available"


@dataclass(frozen=True, slots=True)
class Rule:
    """A value at a place that cannot be had yet."""

    pointer: str
    is_asked: Callable[[JobSpec], bool]
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class EnvironmentRule:
    """A field of an environment that cannot be had yet, wherever the environment stands."""

    field: str
    is_asked: Callable[[EnvironmentPart], bool]
    message: str
    hint: str


RULES: Final = (
    Rule(
        "/model/training/type",
        lambda spec: spec.model.training.type == "lora",
        "LoRA adapters are not available yet.",
        "Use {type: full}; all weights are trained.",
    ),
    Rule(
        "/algorithm/advantage",
        lambda spec: (
            spec.algorithm.advantage == "reinforce_pp"
            or spec.algorithm.advantage.startswith("python:")
        ),
        "This kind of advantage is not available yet.",
        "Use grpo, dr_grpo or rloo.",
    ),
    Rule(
        "/algorithm/task_sampling",
        lambda spec: spec.algorithm.task_sampling != "uniform",
        "Sampling of tasks by what they teach is not available yet.",
        "Use uniform; groups without variance are dropped and refilled.",
    ),
    Rule(
        "/checkpoints/export",
        lambda spec: spec.checkpoints.export != ["safetensors"],
        "Checkpoints are stored in one form.",
        "Use [safetensors].",
    ),
    Rule(
        "/resources/trainer_gpus",
        lambda spec: spec.resources.trainer_gpus not in ("auto", 1),
        "A trainer on several hosts is not available yet.",
        "Use auto or 1.",
    ),
    Rule(
        "/resources/tensor_parallel",
        lambda spec: spec.resources.tensor_parallel not in ("auto", 1),
        "Engines that span several GPUs are not available yet.",
        "Use auto or 1.",
    ),
    Rule(
        "/resources/placement",
        lambda spec: spec.resources.placement == "colocated",
        "Engines and trainer on the same GPUs are not available yet.",
        "Use auto or split.",
    ),
    Rule(
        "/budget/max_cost_usd",
        lambda spec: spec.budget.max_cost_usd is not None,
        "Budgets in money are not available yet.",
        "Use budget.max_wall_hours.",
    ),
    Rule(
        "/retention/trajectories",
        lambda spec: spec.retention.trajectories != "all",
        "All trajectories stay in this version.",
        "Use all.",
    ),
    Rule(
        "/retention/days",
        lambda spec: spec.retention.days is not None,
        "Nothing of a job is deleted by age in this version.",
        "Leave it null.",
    ),
    Rule(
        "/trackers/0",
        lambda spec: bool(spec.trackers),
        "Outside trackers are not available yet.",
        "Read GET /v1/jobs/{id}/metrics and /events.",
    ),
)


ENVIRONMENT_RULES: Final = (
    EnvironmentRule(
        "harness",
        lambda use: isinstance(use.harness, CommandHarness),
        "Agent programs as harness are not available yet.",
        "Use chat, the platform's turn loop.",
    ),
    EnvironmentRule(
        "resources",
        lambda use: use.resources is not None,
        "Resources of a sandbox cannot be set by a job yet.",
        "Set limits.memory_mb and limits.pids in the environment's venus.toml.",
    ),
)


def check_availability(spec: JobSpec, outcome: Outcome) -> None:
    """Refuse what cannot be honoured."""
    for rule in RULES:
        if rule.is_asked(spec):
            outcome.error(rule.pointer, CODE, rule.message, rule.hint)
    for placed in uses_of(spec):
        for one in ENVIRONMENT_RULES:
            if one.is_asked(placed.use):
                outcome.error(f"{placed.pointer}/{one.field}", CODE, one.message, one.hint)
