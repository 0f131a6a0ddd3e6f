"""What a trainer costs, from recorded steps."""

import math
from collections.abc import Sequence

from simulation.fitting import Row, fit_relative
from simulation.rates import TrainerRates
from simulation.recorded import RecordedStep, level_of


def fit_trainer(steps: Sequence[RecordedStep], groups_per_batch: int = 1) -> TrainerRates:
    """Updates as they were measured, the rest by trained tokens; without measures by least squares.

    What passed between the last assignment and the commit beyond the work that then was left (the
    last group and the update) is waiting, and part of the update here; but no more of it than the
    trainer stood idle, for what it had before the last group it works off first.
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
        min(
            step.committed_s
            - step.assigned_s
            - update_s
            - token_s * step.trained_tokens / groups_per_batch,
            step.idle_s,
        )
        for step in steps
        if step.assigned_s is not None
    ]
    return TrainerRates(token_s, update_s + level_of(waited, 0.5))
