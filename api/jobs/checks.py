"""What of a well-formed spec contradicts the project, the pool or itself."""

from collections.abc import Mapping
from typing import Any, Final

from api.jobs.outcome import Outcome, Surroundings
from api.jobs.resolution import MAX_STEPS_DEFAULT, context_of, limits_of, put_at
from api.jobs.sources import check_datasets
from api.jobs.uses import PlacedUse, check_uses, uses_of
from api.problems import near_names
from domain.engine import PAGE_TOKENS
from venusrl.models.checkpoints import BaseModelInfo
from venusrl.models.job_spec import JobSpec
from venusrl.models.spec_rollout import Evaluation

GRADING_RESERVE: Final = 1
"""Sandboxes of the pool that agents never get; the same number as the scheduler's."""

APPENDING_RENDERERS: Final = frozenset({"char", "chatml"})
"""Renderers of the platform. Each turn's prompt has the one before as its exact prefix: they render
only what comes next, never again what was sampled; where a template leaves earlier reasoning out,
it is cut out of the sampled tokens and a new segment begins. A test plays conversations through them."""

SOURCES: Final = {
    "hf:": "POST /v1/models imports a revision of the hub.",
    "upload:": "POST /v1/models uploads a model.",
    "ckpt_": "GET /v1/jobs/{id}/checkpoints lists them; a ready one can be a base.",
}
"""By prefix of a model's reference: how such a model comes into the project."""

HOUR_S: Final = 3600.0


def check_model(spec: JobSpec, around: Surroundings, outcome: Outcome) -> None:
    """The model exists, its context is long enough, and its renderer only appends."""
    base, wanted = spec.model.base, spec.model.context_tokens
    model = around.models.get(base)
    if model is None:
        _unknown_model(base, around, outcome)
        return
    if wanted is not None and wanted > model.context_tokens:
        message = f"{base} has a context of {model.context_tokens} tokens."
        outcome.error("/model/context_tokens", "context_too_long", message)
    else:
        _check_engine(spec, model, around, outcome)
    if model.renderer is not None and model.renderer not in APPENDING_RENDERERS:
        message = (
            f"The chat template of {base} ({model.renderer}) may render earlier turns anew, so a"
            " turn's prompt would not begin with the tokens that were sampled before it."
        )
        known = ", ".join(sorted(APPENDING_RENDERERS))
        hint = f"Use a model with one of the renderers {known}."
        outcome.error("/model/base", "template_unstable", message, hint)
    elif model.drops_reasoning:
        _say_rewrites(spec, outcome)
    _check_training(spec, outcome)


def _say_rewrites(spec: JobSpec, outcome: Outcome) -> None:
    """The template rewrites history: nothing fails for that, and its user has the choice."""
    base = spec.model.base
    if spec.model.on_history_rewrite == "keep":
        message = (
            f"The chat template of {base} leaves the reasoning of earlier turns out; this job keeps it"
            " in the prompts, so the policy trains on prompts that the template would not write."
        )
        hint = "Use segment to train on what the template shows."
    else:
        message = (
            f"The chat template of {base} leaves the reasoning of earlier turns out, so a turn's prompt"
            " may not begin with the tokens sampled before: a new segment begins there."
        )
        hint = (
            "Use keep for one sequence a rollout, with the reasoning of all turns in the context."
        )
    outcome.warn("/model/on_history_rewrite", "template_rewrites_history", message, hint)


def _unknown_model(base: str, around: Surroundings, outcome: Outcome) -> None:
    source = next((words for prefix, words in SOURCES.items() if base.startswith(prefix)), None)
    near = near_names(base, [*around.models, *around.model_refs])
    hint = "See GET /v1/models." if source is None else f"See GET /v1/models. {source}"
    message = f"There is no ready model {base!r}." if source else f"There is no model {base!r}."
    outcome.error("/model/base", "unknown_model", message, f"{hint}{near}")


def _check_engine(
    spec: JobSpec, model: BaseModelInfo, around: Surroundings, outcome: Outcome
) -> None:
    limits = around.settings.limits
    context, _ = context_of(spec, model, around.settings)
    held = min(limits.context_tokens, limits.kv_pages * PAGE_TOKENS)
    if context > held:
        message = f"An engine of this installation holds {held} tokens of one rollout."
        hint = f"Use {held} or less; VENUS_CONTEXT_TOKENS and VENUS_KV_PAGES bound it."
        outcome.error("/model/context_tokens", "never_fits", message, hint)


def _check_training(spec: JobSpec, outcome: Outcome) -> None:
    training = spec.model.training
    if training.type == "lora":
        return
    for name in ("rank", "alpha", "targets"):
        if getattr(training, name) is not None:
            message = f"{name} belongs to adapters; all weights are trained here."
            outcome.error(f"/model/training/{name}", "no_effect", message, "Remove it.")


def check_environments(
    spec: JobSpec, normal: dict[str, Any], around: Surroundings, outcome: Outcome
) -> None:
    """Each environment has a ready version with its splits; without a number the newest is taken."""
    for placed in uses_of(spec):
        version = _ready_version(placed, around, outcome)
        if version is None:
            continue
        outcome.versions[placed.pointer] = version
        _check_rewrites(spec, placed, version, outcome)
        pinned = f"{placed.use.ref.partition('@')[0]}@{version.version}"
        put_at(normal, placed.ref, pinned)
        if pinned != placed.use.ref:
            outcome.resolved.append((placed.ref, pinned, "the newest ready version"))
        provided = check_datasets(placed, normal, around.datasets, outcome)
        splits = {**version.splits, **provided}
        _check_splits(placed, splits, outcome)
        _check_evaluated(spec, placed, splits, outcome)
    check_uses(spec, outcome)


def _ready_version(placed: PlacedUse, around: Surroundings, outcome: Outcome) -> Any:
    name, _, number = placed.use.ref.partition("@")
    versions = around.environments.get(name)
    if not versions:
        near = near_names(name, list(around.environments))
        message = f"There is no environment {name!r} in this project."
        outcome.error(
            placed.ref, "unknown_environment", message, f"See GET /v1/environments.{near}"
        )
        return None
    ready = [row for row in versions if row.state == "ready"]
    meant = [row for row in ready if (row.version == int(number) if number else not row.is_draft)]
    found = [row for row in meant if row.yanked_at is None]
    if found:
        return found[-1]
    states = ", ".join(f"{row.version}: {_state(row)}" for row in versions[-5:])
    if meant:
        which = f"Version {meant[-1].version}" if number else "Every published version"
        why = f": {meant[-1].yank_reason}" if meant[-1].yank_reason else ""
        message = f"{which} of environment {name!r} is yanked{why}."
        hint = f"Newest versions: {states}. POST .../publish takes a yank back."
        outcome.error(placed.ref, "version_yanked", message, hint)
        return None
    message = f"Environment {name!r} has no such ready version."
    hint = f"Newest versions: {states}."
    if any(row.is_draft for row in ready) and not number:
        hint += " A draft is used by its number, or once it is published."
    outcome.error(placed.ref, "version_not_ready", message, hint)
    return None


def _state(row: Any) -> str:
    if row.yanked_at is not None:
        return "yanked"
    return "draft" if row.is_draft and row.state == "ready" else str(row.state)


def _check_rewrites(spec: JobSpec, placed: PlacedUse, version: Any, outcome: Outcome) -> None:
    if spec.model.on_history_rewrite == "keep" and (version.manifest or {}).get("rewrites_history"):
        message = f"The environment {placed.use.ref} rewrites its history; it cannot be kept."
        hint = "Use segment: each rewritten history is a token sequence of its own."
        outcome.error("/model/on_history_rewrite", "history_rewritten", message, hint)


def _check_splits(placed: PlacedUse, splits: Mapping[str, int], outcome: Outcome) -> None:
    for pointer, split in placed.splits:
        if split not in splits:
            near = near_names(split, list(splits))
            message = f"The environment has no split {split!r}."
            hint = f"It has: {', '.join(sorted(splits))}.{near}"
            outcome.error(pointer, "unknown_split", message, hint)


def _check_evaluated(
    spec: JobSpec, placed: PlacedUse, splits: Mapping[str, int], outcome: Outcome
) -> None:
    """Asked for more tasks than there are, an evaluation has each once; the default asks for nothing."""
    evaluation = spec.evaluation
    if evaluation is None or evaluation.tasks == Evaluation.model_fields["tasks"].default:
        return
    for pointer, split in placed.splits:
        count = splits.get(split)
        if pointer.startswith("/evaluation") and count is not None and count < evaluation.tasks:
            message = f"Split {split!r} of {placed.name} has {count} tasks; each is evaluated once."
            hint = f"Use {count}, or rollouts_per_task for narrower intervals."
            outcome.warn("/evaluation/tasks", "fewer_tasks", message, hint)


def check_rollout(spec: JobSpec, outcome: Outcome) -> None:
    """Groups have a signal, and staleness is corrected."""
    size = spec.rollout.group_size
    if size == 1:
        message = "A group of one has no signal: its advantage is zero."
        outcome.warn("/rollout/group_size", "no_signal", message, "Use at least 2.")
    least = spec.rollout.on_failure.min_group_size
    if isinstance(least, int) and least > size:
        message = f"min_group_size {least} is above group_size {size}."
        outcome.error("/rollout/on_failure/min_group_size", "above_group_size", message)
    scheduling = spec.scheduling
    if scheduling.max_staleness > 0 and spec.algorithm.correction.type == "none":
        message = "An asynchronous job needs an importance correction."
        hint = "Set algorithm.correction.type to tis, or scheduling.max_staleness to 0."
        outcome.error("/algorithm/correction/type", "correction_needed", message, hint)
    ratio = scheduling.async_ratio
    is_sync = scheduling.strategy == "slime-sync"
    if scheduling.max_staleness == 0 and not is_sync and ratio != "auto" and ratio > 1.0:
        message = "With max_staleness 0 no group runs ahead, whatever the ratio."
        hint = "Set scheduling.max_staleness to 1 or more, or leave the ratio auto."
        outcome.warn("/scheduling/async_ratio", "no_effect", message, hint)


def check_resources(spec: JobSpec, around: Surroundings, outcome: Outcome) -> None:
    """The whole empty pool could hold the job."""
    pool, limits = around.settings.pool, around.settings.limits
    wanted = spec.resources.rollout_gpus
    if pool.trainers < 1:
        message = "The pool has no trainer host."
        outcome.error("/resources/trainer_gpus", "never_fits", message)
    if wanted.min > pool.engines:
        message = f"The pool has {pool.engines} engine hosts; the job needs {wanted.min}."
        outcome.error("/resources/rollout_gpus/min", "never_fits", message)
    if isinstance(wanted.max, int) and wanted.max < wanted.min:
        message = f"max {wanted.max} is below min {wanted.min}."
        outcome.error("/resources/rollout_gpus/max", "below_min", message)
    # A group's sandboxes lie on one node, so that they can be forked from one snapshot.
    room = min(limits.sandboxes * pool.nodes - GRADING_RESERVE, limits.sandboxes)
    groups = [("/rollout/group_size", spec.rollout.group_size)]
    if spec.evaluation is not None:
        groups.append(("/evaluation/rollouts_per_task", spec.evaluation.rollouts_per_task))
    for pointer, size in groups:
        if size > room:
            message = f"A group needs {size} sandboxes; the pool gives {room}."
            outcome.error(pointer, "never_fits", message)


def check_lifetimes(spec: JobSpec, outcome: Outcome) -> None:
    """Limits of time and of steps fit in one another."""
    steps = spec.stop.max_steps or (MAX_STEPS_DEFAULT if spec.stop.max_epochs is None else None)
    if steps is not None and spec.optimizer.warmup_steps > steps:
        message = f"The rate never reaches its full value: the job has {steps} steps."
        outcome.warn("/optimizer/warmup_steps", "lifetime", message, f"Use at most {steps}.")
    longest = ("", 0.0)
    for placed in uses_of(spec):
        if placed.pointer in outcome.versions:
            wall_s = _check_wall(placed, outcome)
            longest = max(longest, (placed.pointer, wall_s), key=lambda pair: pair[1])
    hours, wall_s = spec.budget.max_wall_hours, longest[1]
    if hours is not None and hours * HOUR_S < wall_s:
        message = f"One rollout may take {wall_s:g} s, the whole job only {hours * HOUR_S:g} s."
        hint = f"Use at least {wall_s / HOUR_S:.3g}, or a lower {_dotted(longest[0])}.wall_s."
        outcome.error("/budget/max_wall_hours", "lifetime", message, hint)


def _check_wall(placed: PlacedUse, outcome: Outcome) -> float:
    """Seconds that a rollout of the environment may take."""
    limits, chosen = limits_of(outcome.versions[placed.pointer]), placed.use.wall_s
    if chosen is None:
        return limits["wall_s"]
    if chosen < limits["reply_s"]:
        message = (
            f"One reply of the environment may take {limits['reply_s']:g} s; the rollout's limit of"
            f" {chosen:g} s cuts it off."
        )
        hint = f"Use at least {limits['reply_s']:g}, or lower limits.reply_s of the environment."
        outcome.warn(f"{placed.pointer}/wall_s", "lifetime", message, hint)
    return chosen


def _dotted(pointer: str) -> str:
    """As people write a place: environments[0]."""
    *path, number = pointer.strip("/").split("/")
    return f"{'.'.join(path)}[{number}]"
