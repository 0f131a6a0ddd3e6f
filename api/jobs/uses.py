"""The environments that a spec names, where they stand, and which splits of each are read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from api.jobs.outcome import Outcome
from domain.estimates import sizes
from venusrl.models.job_spec import JobSpec
from venusrl.models.spec_rollout import EnvironmentPart

FROM_ELSEWHERE: Final = re.compile(
    r"/model/context_tokens|/stop/max_steps|/environments/[0-9]+/(max_turns|wall_s)"
    r"|/evaluation/environments/[0-9]+/(max_turns|wall_s|split)"
)
"""Places where null, not `auto`, asks for a value."""

PINNED: Final = re.compile(r"(/evaluation)?/environments/[0-9]+/(datasets/[0-9]+/)?ref")
"""Places of versions, which stay when a spec is opened again."""

SELECTED: Final = "/evaluation/select_best"

GROUPS_MAX: Final = 9_999
"""Groups of one evaluation; the same number as of ordinals that an evaluation has."""

NUMBER: Final = re.compile(r"(avg|pass)@([0-9]{1,3})")
COMPONENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
"""Names of rewards and metrics: those of their functions."""


@dataclass(frozen=True, slots=True)
class PlacedUse:
    """One environment of a spec. `splits` are names by the pointer that asks for them."""

    pointer: str
    use: EnvironmentPart
    splits: Sequence[tuple[str, str]]

    @property
    def ref(self) -> str:
        """Pointer of its reference."""
        return f"{self.pointer}/ref"

    @property
    def name(self) -> str:
        """Its name in metrics."""
        return self.use.name or self.use.ref.partition("@")[0]


def uses_of(spec: JobSpec) -> list[PlacedUse]:
    """All environments: those of training, then those that are only evaluated."""
    return [*trained(spec), *evaluated(spec)]


def trained(spec: JobSpec) -> list[PlacedUse]:
    """Environments of training; evaluations read them too where they have none of their own."""
    evaluation = spec.evaluation
    is_evaluated = evaluation is not None and not evaluation.environments
    uses = []
    for number, use in enumerate(spec.environments):
        pointer = f"/environments/{number}"
        splits = [(f"{pointer}/split", use.split)]
        if is_evaluated and evaluation is not None:
            splits.append(("/evaluation/split", evaluation.split))
        uses.append(PlacedUse(pointer, use, splits))
    return uses


def evaluated(spec: JobSpec) -> list[PlacedUse]:
    """Environments that are only evaluated."""
    if spec.evaluation is None:
        return []
    uses = []
    for number, use in enumerate(spec.evaluation.environments):
        pointer = f"/evaluation/environments/{number}"
        split = use.split or spec.evaluation.split
        uses.append(PlacedUse(pointer, use, [(f"{pointer}/split", split)]))
    return uses


def check_uses(spec: JobSpec, outcome: Outcome) -> None:
    """Environments have names of their own, evaluations fit, and what is held out is."""
    for uses in (trained(spec), evaluated(spec)):
        _check_names(uses, outcome)
    _check_held_out(spec, outcome)
    _check_target(spec, outcome)
    evaluation = spec.evaluation
    if evaluation is None:
        return
    count = len(evaluation.environments or spec.environments)
    if evaluation.tasks * count > GROUPS_MAX:
        message = f"{evaluation.tasks} tasks of {count} environments are above {GROUPS_MAX}."
        hint = f"Use at most {GROUPS_MAX // count} tasks."
        outcome.error("/evaluation/tasks", "too_many_tasks", message, hint)
    _check_selection(spec, outcome)


def _check_names(uses: Sequence[PlacedUse], outcome: Outcome) -> None:
    seen: set[str] = set()
    for placed in uses:
        if placed.name in seen:
            message = f"Two environments have the name {placed.name!r} in results and metrics."
            hint = "Give one of them a name."
            outcome.error(f"{placed.pointer}/name", "repeated_name", message, hint)
        seen.add(placed.name)


def _check_held_out(spec: JobSpec, outcome: Outcome) -> None:
    evaluation = spec.evaluation
    if evaluation is None:
        return
    message = "The evaluation uses the split that the job trains on."
    if not evaluation.environments:
        if any(use.split == evaluation.split for use in spec.environments):
            outcome.warn("/evaluation/split", "not_held_out", message)
        return
    for placed in evaluated(spec):
        (pointer, split), use = placed.splits[0], placed.use
        if any(_reads_same(use, other) and other.split == split for other in spec.environments):
            outcome.warn(pointer, "not_held_out", message)


def _reads_same(one: EnvironmentPart, other: EnvironmentPart) -> bool:
    """Whether both take their tasks from the same place."""
    names = [use.ref.partition("@")[0] for use in (one, other)]
    is_same_source = one.config == other.config and one.datasets == other.datasets
    return names[0] == names[1] and is_same_source


def _check_target(spec: JobSpec, outcome: Outcome) -> None:
    """An end by an evaluation needs evaluations, and that the checkpoint of its step is kept."""
    if spec.stop.target_eval is None:
        return
    pointer, evaluation = "/stop/target_eval", spec.evaluation
    if evaluation is None:
        message = "The job has no evaluation whose number could reach the target."
        outcome.error(pointer, "no_effect", message, "Set evaluation, with every_steps.")
    elif evaluation.every_steps is None:
        message = "Only the start and the last step are evaluated: the target ends nothing early."
        outcome.warn(pointer, "no_effect", message, "Set evaluation.every_steps.")
    if spec.checkpoints.keep_best == 0:
        message = "The checkpoint that reached the target might be gone when the job ends."
        outcome.error(pointer, "not_kept", message, "Set checkpoints.keep_best to 1 or more.")


def _check_selection(spec: JobSpec, outcome: Outcome) -> None:
    """What chooses the best checkpoint is a number that evaluations give."""
    evaluation = spec.evaluation
    if evaluation is None or evaluation.select_best is None:
        return
    environment, _, number = evaluation.select_best.rpartition("/")
    names = [placed.name for placed in evaluated(spec) or trained(spec)]
    if environment and environment not in names:
        message = f"No environment that is evaluated is named {environment!r}."
        outcome.error(SELECTED, "unknown_metric", message, f"There is: {', '.join(names)}.")
        return
    k = evaluation.rollouts_per_task
    known = ["score", f"avg@{k}", *(f"pass@{one}" for one in sizes(k))]
    is_known = number in known or (
        COMPONENT.fullmatch(number) is not None and not NUMBER.fullmatch(number)
    )
    if not is_known:
        message = f"An evaluation of {k} rollouts a task gives no {number!r}."
        hint = f"It gives {', '.join(known)}, and each reward and metric of its environments."
        outcome.error(SELECTED, "unknown_metric", message, hint)
