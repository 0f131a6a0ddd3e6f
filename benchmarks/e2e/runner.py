"""One case on a running stack: the job through the public API, then what the platform recorded of it."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.e2e import measures, model
from benchmarks.e2e.cases import Case, Cell, bounds_of, is_within, spec_of
from benchmarks.e2e.costs import Costs
from benchmarks.e2e.measures import Member
from benchmarks.e2e.records import Kept, Run, stamps, work_digest
from domain.event_log import LogRecord
from domain.events import SandboxReady
from domain.ids import ProjectId
from infra.settings import Settings
from simulation.recorded import RecordedJob
from simulation.replay.reading import read_store
from stores.blobs import Blobs
from stores.unit_of_work import Database
from tests.support.stack import Stack, StackPlan, running_stack
from venusrl.client import WaitTimeout
from venusrl.models.schedule import EngineProfile
from workers.chores.handling import ChoreTools
from workers.chores.plan_records import read_recorded

PACKAGE: Final = Path(__file__).with_name("delays")

RUN_S_MAX: Final = 1_800.0
"""A job that takes longer stands still: the slowest baseline takes some minutes."""

CANCEL_S_MAX: Final = 120.0
"""A checkpoint, and every rollout given up: the next run finds the engines free."""

TRAINED: Final = """
select g.task_id, r.index, r.turns, r.tokens, r.sampled_tokens
from batch_member m join rollout_group g on g.id = m.group_id join rollout r on r.group_id = g.id
where m.job_id = %s
"""

READY: Final = """
select r.id, s.number, extract(epoch from s.started_at)::float8, extract(epoch from min(h.placed_at))::float8
from rollout r join sandbox_interval s on s.rollout_id = r.id and s.purpose = 'agent'
join rollout_hop h on h.rollout_id = r.id and h.try = s.number
where r.job_id = %s group by r.id, s.number, s.started_at
"""
"""Of each try: its sandbox begun, its first placement."""

DROPPED: Final = (
    "select count(*) from rollout_group where job_id = %s and disposition like 'dropped%%'"
)

FAILED: Final = """
select count(*) from rollout_try t join rollout r on r.id = t.rollout_id where r.job_id = %s and t.counts
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """A stack that has the environment and the model."""

    stack: Stack
    model: str
    costs: Costs | None = None

    def run(self, case: Case, limit_s: float = RUN_S_MAX) -> tuple[Run, Kept]:
        """The job to its end, and its figures. Raises what the client raises when it does not succeed."""
        load = os.getloadavg()[0]
        client = self.stack.client
        job = client.jobs.create(dict(spec_of(case, self.model)))
        try:
            client.jobs.wait(job.id, timeout_s=limit_s)
        except WaitTimeout:
            client.jobs.cancel(job.id)
            client.jobs.wait_for(job.id, ["cancelled"], timeout_s=CANCEL_S_MAX)
            raise
        run, kept = _read(self.stack, case, job.id, load)
        return run, replace(kept, costs=self.costs)


@contextmanager
def bench(cell: Cell, costs: Costs | None = None) -> Iterator[Bench]:
    """A stack with the sizes of a cell, for all its runs of one seed."""
    with TemporaryDirectory() as folder, running_stack(StackPlan(environ=cell.environ)) as stack:
        version = stack.client.environments.push(PACKAGE, wait_s=None)
        stack.client.environments.wait(version)
        built = stack.client.models.upload("uniform", model.build(Path(folder) / "model"))
        yield Bench(stack, built.ref, costs)


def _read(stack: Stack, case: Case, job_id: str, load: float) -> tuple[Run, Kept]:
    spec, job, heard = asyncio.run(_recorded(stack, job_id))
    members = tuple(
        sorted(Member(str(task), *map(int, rest)) for task, *rest in stack.query(TRAINED, job_id))
    )
    places = stack.query(READY, job_id)
    waited = [(float(begun), float(placed)) for _, _, begun, placed in places]
    decided = [
        (heard[name, number], float(placed))
        for name, number, _, placed in places
        if (name, number) in heard
    ]
    profile = stack.client.jobs.profile(job_id)
    counted = [one for one in profile.engines if one.kv_pages]
    assert counted, "no engine ever said how many pages it has"
    pages = int(max(one.kv_pages or 0.0 for one in counted))
    async_ratio, max_staleness = bounds_of(case.entry, case.steps)
    began = measures.began_s(job)
    span = job.steps[-1].committed_s - began
    run = Run(
        cell=case.cell.name,
        entry=case.entry.name,
        strategy=case.entry.strategy.value,
        off=[one.value for one in case.entry.off],
        seed=case.seed,
        steps=case.steps,
        async_ratio=async_ratio,
        max_staleness=max_staleness,
        is_within=is_within(case.entry),
        engines=job.engines,
        slots=job.slots,
        kv_pages=pages,
        step_s=measures.step_s(job),
        later_step_s=measures.later_step_s(job),
        commits_s=[round(step.committed_s - began, 3) for step in job.steps],
        pressure=measures.pressure(job.groups, case.cell.groups_open_max, pages, job.engines),
        demand=measures.demand(job, pages),
        hit_rate=profile.hit_rate or 0.0,
        evictions=_total(counted, "evictions"),
        preemptions=_total(counted, "preemptions"),
        sampled_tokens=_total(counted, "sampled_tokens"),
        prefilled_tokens=_total(counted, "prefilled_tokens"),
        engine_busy_share=_total(counted, "busy_s") / (span * job.engines),
        engaged_s=_total(counted, "engaged_s"),
        prefill_s=_total(counted, "prefill_s"),
        engine_steps=_total(counted, "steps"),
        attended_tokens=_total(counted, "attended_tokens"),
        kv_read_tokens=_total(counted, "kv_read_tokens"),
        generating_share=measures.generating_share(job),
        unplaced_share=measures.waiting_share(waited, len(waited), job),
        decision_share=measures.waiting_share(decided, len(waited), job),
        decisions=len(decided),
        live_max=measures.live_max(job),
        staleness=_staleness(job),
        dropped_groups=int(stack.query(DROPPED, job_id)[0][0]),
        failed_tries=int(stack.query(FAILED, job_id)[0][0]),
        work=work_digest(members),
        load=load,
        **stamps(case),
    )
    return run, Kept(job, members, spec)


Heard = dict[tuple[str, int], float]
"""When the leader heard of a try's sandbox, by rollout and try, in seconds since 1970."""


async def _recorded(stack: Stack, job_id: str) -> tuple[dict[str, object], RecordedJob, Heard]:
    settings = Settings.from_env(
        {**os.environ, **stack.plan.environ_in(stack.home), **stack.state["environ"]}
    )
    database = Database(stack.database_url, 1)
    try:
        blobs = Blobs(stack.object_store_url)
        tools = ChoreTools(settings, database, blobs)
        project = ProjectId(stack.client.jobs.get(job_id).project_id)
        found, job = await read_recorded(tools, project, job_id)
        segments = (await read_store(blobs, None)).found
    finally:
        await database.close()
    heard = {
        (str(entry.event.rollout_id), entry.event.try_): entry.now
        for segment in segments
        for entry in segment.entries
        if isinstance(entry, LogRecord) and isinstance(entry.event, SandboxReady)
    }
    return dict(found.spec), job, heard


def _total(engines: list[EngineProfile], name: str) -> float:
    return float(sum(getattr(one, name) or 0.0 for one in engines))


def _staleness(job: RecordedJob) -> dict[str, int]:
    counts = Counter(lag for step in job.steps for lag in step.staleness)
    return {str(lag): counts[lag] for lag in sorted(counts)}
