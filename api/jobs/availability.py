"""Fields of the spec that this version knows and cannot honour: refused, each with what to do instead.

A rule goes when what it refuses arrives. Nothing that a user writes is silently without effect.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from api.jobs.outcome import Outcome
from venusrl.models.job_spec import JobSpec
from venusrl.models.spec_rollout import CommandHarness

CODE: Final = "not_available"


@dataclass(frozen=True, slots=True)
class Rule:
    """A value at a place that cannot be had yet."""

    pointer: str
    is_asked: Callable[[JobSpec], bool]
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
        "/environments/1",
        lambda spec: len(spec.environments) > 1,
        "A job on several environments is not available yet.",
        "Keep one; submit one job an environment, or mix the tasks in one package.",
    ),
    Rule(
        "/environments/0/filter",
        lambda spec: spec.environments[0].filter is not None,
        "Filters on tasks are not available yet.",
        "Use a split of the environment's own, limit, or a setting in config.",
    ),
    Rule(
        "/environments/0/harness",
        lambda spec: isinstance(spec.environments[0].harness, CommandHarness),
        "Agent programs as harness are not available yet.",
        "Use chat, the platform's turn loop.",
    ),
    Rule(
        "/environments/0/resources",
        lambda spec: spec.environments[0].resources is not None,
        "Resources of a sandbox cannot be set by a job yet.",
        "Set limits.memory_mb and limits.pids in the environment's venus.toml.",
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
        "/evaluation/environments",
        lambda spec: spec.evaluation is not None and bool(spec.evaluation.environments),
        "Evaluation on other environments is not available yet.",
        "Leave it empty: the job's own environment is evaluated, on evaluation.split.",
    ),
    Rule(
        "/evaluation/select_best",
        lambda spec: spec.evaluation is not None and spec.evaluation.select_best is not None,
        "The choice of a best checkpoint by a metric is not available yet.",
        "Use checkpoints.keep_best with evaluation.every_steps, and GET /v1/jobs/{id}/evaluations.",
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
        "/stop/target_eval",
        lambda spec: spec.stop.target_eval is not None,
        "An end by an evaluation's score is not available yet.",
        "Use stop.max_steps and evaluation.every_steps; PATCH max_steps ends the job earlier.",
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


def check_availability(spec: JobSpec, splits: Mapping[str, int], outcome: Outcome) -> None:
    """Refuse what cannot be honoured. `splits` counts tasks, empty when they are not known."""
    for rule in RULES:
        if rule.is_asked(spec):
            outcome.error(rule.pointer, CODE, rule.message, rule.hint)
    _check_epochs(spec, splits, outcome)


def _check_epochs(spec: JobSpec, splits: Mapping[str, int], outcome: Outcome) -> None:
    if spec.stop.max_epochs is None:
        return
    use = spec.environments[0]
    tasks = min(splits.get(use.split, 0), use.limit or 1_000_000)
    hint = "Use stop.max_steps."
    if tasks:
        batch = spec.rollout.groups_per_batch
        steps = max(1, round(spec.stop.max_epochs * tasks / batch))
        hint = (
            f"Use stop.max_steps: {tasks} tasks in batches of {batch} make that {steps} steps,"
            " fewer where groups are dropped."
        )
    message = "An end by epochs is not available yet."
    outcome.error("/stop/max_epochs", CODE, message, hint)
