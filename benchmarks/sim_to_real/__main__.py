"""`python -m benchmarks.sim_to_real [--jobs N] [--json FILE]`: forecast, run, compare.

Two jobs are recorded first. Then for each setting a what-if of a recorded job is asked for, and only
then the job is run. Counted is whether its step time lies in the plan's 80 % interval. By hand; a
quiet machine.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.sim_to_real.settings import RECORDED, RECORDED_STEPS, Case, cases
from domain.ids import ProjectId
from infra.settings import Settings
from simulation.bootstrap import course_of
from simulation.plan import Figure, figures_of
from stores.blobs import Blobs
from stores.unit_of_work import Database
from tests.support.stack import Stack, running_stack
from workers.chores.handling import ChoreTools
from workers.chores.plan_records import read_recorded

JOBS: Final = 30
COVERED_MIN: Final = 20
WIDTH_MAX: Final = 0.5
"""Median width of the interval over the forecast."""

REPLICAS: Final = 12


@dataclass(frozen=True, slots=True)
class Compared:
    """One job beside its plan, in seconds a step."""

    case: Case
    median: float
    low: float
    high: float
    real: float

    @property
    def is_covered(self) -> bool:
        """The interval holds what happened."""
        return self.low <= self.real <= self.high

    @property
    def width(self) -> float:
        """Of the interval, over the forecast."""
        return (self.high - self.low) / self.median


def run_job(stack: Stack, case: Case, name: str, steps: int | None = None) -> str:
    """Run a job to its end; its id."""
    spec = case.spec(name) if steps is None else case.spec(name, steps)
    job = stack.client.jobs.create(dict(spec))
    stack.client.jobs.wait(job.id)
    return job.id


def real_step_s(stack: Stack, job_id: str) -> float:
    """Seconds of a step of an ended job, by the same rule as a forecast's."""

    async def read() -> float:
        settings = Settings.from_env(
            {**os.environ, **stack.plan.environ_in(stack.home), **stack.state["environ"]}
        )
        database = Database(stack.database_url, 1)
        try:
            tools = ChoreTools(settings, database, Blobs(stack.object_store_url))
            project = ProjectId(stack.client.jobs.get(job_id).project_id)
            _, job = await read_recorded(tools, project, job_id)
        finally:
            await database.close()
        return figures_of(course_of(job))[Figure.STEP_S]

    return asyncio.run(read())


def compare(stack: Stack, recorded: str, case: Case, number: int) -> Compared:
    """Plan a case from the recorded job, then run it."""
    client = stack.client
    asked = client.plans.whatif(
        recorded, case.changes, pool={"engines": case.engines}, steps=5, replicas=REPLICAS
    )
    result = client.plans.wait(asked)
    assert result.changed is not None
    planned = result.changed.figures["step_s"]
    real = real_step_s(stack, run_job(stack, case, f"case-{number}"))
    return Compared(case, planned.median, planned.low, planned.high, real)


def measure(count: int) -> list[Compared]:
    """All comparisons, printed as they come."""
    found: list[Compared] = []
    with running_stack() as stack:
        known = {
            case.engines: run_job(stack, case, f"recorded-{case.engines}", RECORDED_STEPS)
            for case in RECORDED
        }
        for number, case in enumerate(cases(count), 1):
            one = compare(stack, known[case.engines], case, number)
            found.append(one)
            mark = "covered" if one.is_covered else "missed"
            print(
                f"{number:3} G={case.group_size:2} B={case.groups_per_batch} m={case.max_staleness}"
                f" a={case.async_ratio} engines={case.engines}: plan {one.median:.2f} s"
                f" [{one.low:.2f}, {one.high:.2f}], real {one.real:.2f} s: {mark}",
                flush=True,
            )
    return found


def main() -> int:
    """Exit status 0 when the plan is good enough."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sim_to_real")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    found = measure(options.jobs)
    covered = sum(one.is_covered for one in found)
    width = median(one.width for one in found)
    error = median(abs(one.real / one.median - 1.0) for one in found)
    minutes = (time.monotonic() - began) / 60.0
    print(f"covered {covered} of {len(found)}, median width {width:.0%} of the forecast,")
    print(f"median error {error:.0%}, {minutes:.1f} minutes, {os.cpu_count()} cores")
    if options.json is not None:
        record = {
            "machine": {
                "cores": os.cpu_count(),
                "system": platform.system(),
                "machine": platform.machine(),
            },
            "covered": covered,
            "jobs": len(found),
            "median_width": width,
            "median_error": error,
            "minutes": minutes,
            "compared": [asdict(one) for one in found],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    is_good = covered * JOBS >= COVERED_MIN * len(found) and width <= WIDTH_MAX
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
