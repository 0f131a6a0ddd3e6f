"""How many steps of a plan are simulated: what was asked for, within what a plan may cost."""

from collections.abc import Mapping
from typing import Any

from api.plans.limits import ROLLOUTS_MAX, STEPS_DEFAULT, too_large
from api.problems import invalid
from venusrl.models.plans import PlanCreate


def step_rollouts(spec: Mapping[str, Any]) -> int:
    """Rollouts of one step."""
    rollout = spec["rollout"]
    return int(rollout["group_size"]) * int(rollout["groups_per_batch"])


def steps_of(spec: Mapping[str, Any], body: PlanCreate) -> int:
    """Steps of a spec. Raises 422 for a plan that is too large, with the limit."""
    wanted = body.steps or STEPS_DEFAULT
    steps = min(wanted, spec["stop"]["max_steps"] or wanted)
    if found := too_large(steps * step_rollouts(spec) * body.replicas):
        raise invalid(found, "The plan is too large.")
    return steps


def recorded_steps(spec: Mapping[str, Any], made: int, body: PlanCreate, spent: int = 0) -> int:
    """Steps of the unchanged run, which is compared with what the job has done.

    Neither few steps that were asked for nor a lowered end make it shorter: an error over the first
    step says nothing about all of them. Only what a plan may cost does. `spent`: rollouts of the rest.
    """
    wanted = min(made, max(body.steps or 0, STEPS_DEFAULT))
    each = step_rollouts(spec) * body.replicas
    affordable = (ROLLOUTS_MAX - spent) // each
    if affordable < 1 and (found := too_large(spent + each)):
        raise invalid(found, "The plan is too large.")
    return min(wanted, affordable)
