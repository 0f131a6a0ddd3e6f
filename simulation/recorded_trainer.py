"""What a trainer costs, from recorded steps."""

import math
from collections.abc import Sequence

from simulation.fitting import Row, fit_relative
from simulation.rates import TrainerRates
from simulation.recorded import RecordedStep, level_of


def fit_trainer(steps: Sequence[RecordedStep], *, streams: bool = True) -> TrainerRates:
    """Updates as they were measured, the rest by trained tokens; without measures by least squares.

    What passed until the commit beyond the work itself, done in turn from each assignment on (`streams`)
    or from the last one on, is waiting for rows and messages, and part of the update here.
    """
    updates = [step.update_s for step in steps if step.update_s is not None]
    if updates:
        work_s = math.fsum(step.busy_s - (step.update_s or 0.0) for step in steps)
        tokens = sum(step.trained_tokens for step in steps)
        token_s = max(work_s, 0.0) / max(tokens, 1)
        update_s = math.fsum(updates) / len(updates)
    else:
        rows = [Row((float(one.trained_tokens), 1.0), one.busy_s, 1.0) for one in steps]
        token_s, update_s = fit_relative(rows, 2)
    waited = [
        step.committed_s - _done_s(step, update_s, streams) for step in steps if step.assigned_s
    ]
    return TrainerRates(token_s, update_s + level_of(waited, 0.5))


def _done_s(step: RecordedStep, usual_update_s: float, streams: bool) -> float:
    """When a trainer that never waits for anything but its groups is done with a step."""
    update_s = usual_update_s if step.update_s is None else step.update_s
    of_group_s = max(step.busy_s - update_s, 0.0) / len(step.assigned_s)
    now = -math.inf if step.began_s is None else step.began_s
    for assigned_s in step.assigned_s:
        now = max(now, assigned_s if streams else step.assigned_s[-1]) + of_group_s
    return now + update_s
