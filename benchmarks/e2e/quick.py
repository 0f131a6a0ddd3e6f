"""What the short run asks: that jobs end whole, and that `venus` is not behind. Pure.

One seed and two steps say nothing of 2.0; they say that the path works and that nothing got slow.
"""

from collections.abc import Sequence
from typing import Final

from benchmarks.e2e.checks import PARITY_MIN
from benchmarks.e2e.records import Run
from benchmarks.schedule.cases import VENUS

NOISE: Final = 0.12
"""Of one pair of runs: neighbours take cores from one of the two."""

FASTEST_MIN: Final = PARITY_MIN - NOISE


def faults_of(runs: Sequence[Run], wanted: int) -> list[str]:
    """What is wrong; empty when nothing is."""
    faults = [f"{run.entry}: {run.failed_tries} tries failed" for run in runs if run.failed_tries]
    if len(runs) < wanted:
        faults.append(f"{wanted - len(runs)} of {wanted} runs did not end")
    venus = next((run for run in runs if run.entry == VENUS.name), None)
    if venus is None:
        return [*faults, "venus has no run"]
    faults += [
        f"{run.entry}: {len(run.commits_s)} steps of {run.steps}"
        for run in runs
        if len(run.commits_s) != run.steps
    ]
    faults += [
        f"{run.entry}: trained other rollouts than venus"
        for run in runs
        if not run.dropped_groups and not venus.dropped_groups and run.work != venus.work
    ]
    faults += [
        f"venus is {run.step_s / venus.step_s:.2f} times as fast as {run.entry}"
        for run in runs
        if run.step_s / venus.step_s < FASTEST_MIN
    ]
    return faults
