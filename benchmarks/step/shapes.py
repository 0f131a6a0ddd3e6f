"""The shapes in which 100,000 live rollouts are spread over 512 engines.

All have the workload of the regime `many` (groups of 8, batches of 64, about 46 turns a rollout); a job
larger than that regime's 96 open groups gets them by its `async_ratio`, or by a larger batch. Of an open
group some members have ended already, so more groups are open than 100,000 rollouts would fill.
"""

from dataclasses import dataclass
from typing import Final

from domain.ids import AttemptId, JobId, OrganizationId, ProjectId
from domain.plan import AfterTries, JobPlan, OnNoSignal, Order, Pool

GROUP_SIZE: Final = 8
GROUPS: Final = 20_544
"""Open groups over all jobs: 96 each of 214 jobs; about 61 % of their rollouts live."""

ENGINES: Final = 512
LATE: Final = 0.97
NODES: Final = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """How many jobs share the engines, and how each paces itself."""

    name: str
    jobs: int
    batch: int = 64
    order: Order = Order.OLDEST
    lived_least: float = 0.0
    """Share of its life that each of the first groups has behind it at least. Of late groups two members
    in three have ended: such a shape is for the size of its batches, not for the number of rollouts."""

    def lived(self, number: int) -> float:
        """The same of job `number`: every 16th is about to fill steps, or a short run would see none."""
        return LATE if number % 16 == 0 else self.lived_least

    @property
    def groups_open(self) -> int:
        """Unfinished groups of one job."""
        return GROUPS // self.jobs

    def engines(self, number: int) -> int:
        """Engines of job `number`, 1-based; the first ones have one more when they do not divide."""
        return ENGINES // self.jobs + (number <= ENGINES % self.jobs)

    def pool(self) -> Pool:
        """Room for exactly these jobs; one more has to queue."""
        rollouts = self.jobs * self.groups_open * GROUP_SIZE
        return Pool(ENGINES, self.jobs, rollouts + 1024, grading_reserve=512)

    def plan(self, number: int) -> JobPlan:
        """The plan of job `number`."""
        ratio = self.groups_open / self.batch
        return JobPlan(
            job_id=JobId(f"job_{number:04d}"),
            attempt_id=AttemptId(f"att_{number:04d}x1"),
            organization_id=OrganizationId("org_1"),
            project_id=ProjectId("prj_1"),
            group_size=GROUP_SIZE,
            groups_per_batch=self.batch,
            max_staleness=max(2, round(ratio) + 1),
            async_ratio=ratio,
            order=self.order,
            max_steps=100_000,
            tries=3,
            after_tries=AfterTries.SHRINK,
            min_group_size=1,
            pause_if_failed_share=1.0,
            on_no_signal=OnNoSignal.SKIP,
            checkpoint_every=10,
            evaluation=None,
            engines_min=self.engines(number),
            engines_max=self.engines(number),
            expected_turns=46,
            drain_s=60.0,
            retry_backoff_s=1.0,
            watchdog_s=3600.0,
        )


SHAPES: Final = (
    Shape("214 jobs", 214),
    Shape("16 jobs", 16),
    Shape("1 job", 1),
    Shape("1 job, batches of 512", 1, batch=512, lived_least=LATE),
    Shape("214 jobs, nearest", 214, order=Order.NEAREST),
    Shape("1 job, longest", 1, order=Order.LONGEST),
)
"""`nearest` and `longest` put a group in another place whenever its estimate changes."""
