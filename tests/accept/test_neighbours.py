"""What a broken environment costs the jobs beside it: rows F20 and F22 of the field's faults.

The same job runs alone and beside a job whose environment breaks at every turn, in turns, so that a
noisy moment of the machine strikes both. The neighbour is up, and breaks, before the clock starts.
"""

import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.support.requirements import requires
from tests.support.specs import small_job
from tests.support.stack import CALC, TREE, Stack, StackPlan, running_stack
from tests.support.waiting import wait_until
from venusrl.models.jobs import Job

pytestmark = [pytest.mark.accept, requires("postgres", "valkey", "bwrap", "torch")]

CHAOS: Final = TREE / "environments" / "chaos"

ROUNDS: Final = 2
STEPS: Final = 12
"""Long enough that starting is not most of it."""

NOISE_ROOM: Final = 1.25
"""Two jobs on two cores also share what is not theirs; the promise itself is printed beside it."""

THROUGHPUT_SHARE_MIN: Final = 0.8 / NOISE_ROOM
TURN_P99_RATIO_MAX: Final = 2.0 * NOISE_ROOM

FAILED_TRY: Final = (
    "select 1 from rollout_try join rollout on rollout.id = rollout_id where job_id = %s limit 1"
)

BREAKS_WITHIN_S: Final = 90.0
ENDS_WITHIN_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the job that is watched: optimizer steps per second, p99 of a turn in seconds."""

    steps_per_s: float
    turn_p99_s: float


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack(StackPlan()) as made:
        for package in (CALC, CHAOS):
            made.client.environments.push(package)
        yield made


@pytest.mark.parametrize("fault", ["sigkill", "spin"])
def test_a_job_beside_a_broken_environment_keeps_its_pace(stack: Stack, fault: str) -> None:
    alone, beside = [], []
    for _ in range(ROUNDS):
        alone.append(watched(stack))
        with broken_neighbour(stack, fault):
            beside.append(watched(stack))
    share = median(beside, "steps_per_s") / median(alone, "steps_per_s")
    p99_ratio = median(beside, "turn_p99_s") / median(alone, "turn_p99_s")
    sys.stdout.write(
        f"\nbeside {fault}: throughput {share:.2f} of alone (promise 0.80), "
        f"turn p99 {p99_ratio:.2f} of alone (promise 2.00)\n  alone {alone}\n  beside {beside}\n"
    )
    assert share >= THROUGHPUT_SHARE_MIN
    assert p99_ratio <= TURN_P99_RATIO_MAX


def watched(stack: Stack) -> Run:
    """The job that is watched, from its first step to its last."""
    job = stack.client.jobs.create(one_engine("watched", stop={"max_steps": STEPS}))
    ended = stack.client.jobs.wait(job.id, ENDS_WITHIN_S)
    assert ended.state == "succeeded"
    events = stack.client.jobs.events(job.id, types=("step.committed",))
    at = [event.created_at for event in events]
    assert len(at) == STEPS
    pace = (STEPS - 1) / (at[-1] - at[0]).total_seconds()
    return Run(round(pace, 3), round(statistics.quantiles(turns_s(stack, job), n=100)[98], 3))


def turns_s(stack: Stack, job: Job) -> list[float]:
    """Seconds of each turn, its answer and its tools."""
    ids = [str(one.id) for one in stack.client.rollouts.list(job.id) if one.end is not None]
    found = [stack.client.rollouts.trajectory(one).turns for one in ids]
    return [turn["generate_s"] + turn["tool_s"] for turns in found for turn in turns]


@contextmanager
def broken_neighbour(stack: Stack, fault: str) -> Iterator[None]:
    """A job that breaks its environment's process at every rollout, until the block ends."""
    chaos = {"ref": "chaos", "config": {"faults": {fault: 1.0}}}
    job = stack.client.jobs.create(one_engine(fault, environments=[chaos]))
    try:
        wait_until(
            lambda: stack.query(FAILED_TRY, job.id),
            BREAKS_WITHIN_S,
            f"{fault} did not strike",
        )
        yield
    finally:
        stack.client.jobs.cancel(job.id)
        stack.client.jobs.wait_for(job.id, ("cancelled",), ENDS_WITHIN_S)


def one_engine(name: str, **changes: Any) -> dict[str, Any]:
    """A small job on one engine host, so that two jobs fit the machine."""
    resources = {"rollout_gpus": {"min": 1, "max": 1}}
    spec = small_job(**{"resources": resources, "checkpoints": {"every_steps": 100}, **changes})
    return {**spec, "name": name}


def median(runs: list[Run], name: str) -> float:
    """Of one figure over the rounds."""
    return statistics.median(float(getattr(run, name)) for run in runs)
