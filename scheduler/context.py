"""What the shell keeps of each job beside the core's state: spec, tasks, environment package."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from domain.errors import PayloadUnreadable, VenusError
from domain.ids import (
    EVALUATION_ORDINAL_BASE,
    EVALUATION_ORDINALS_PER_STEP,
    AttemptId,
    GroupId,
    JobId,
    ordinal_of,
)
from domain.plan import JobPlan
from domain.sandbox import SandboxLimits, SandboxPurpose, SandboxTemplate, template_name
from domain.task_lists import own_list
from infra.settings import Settings
from scheduler.mixing import mixed_sources
from scheduler.spec import (
    EnvironmentUse,
    Spec,
    evaluated_lists,
    evaluated_size,
    plan_of,
    read_spec,
)
from scheduler.tasks import JobTasks, TaskBook, TaskLine, parse_tasks
from stores.blobs import Blobs
from stores.system import jobs
from stores.system.jobs import JobRow, PackageRef
from stores.unit_of_work import Database


class JobUnreadable(VenusError):
    """The stored spec, package or task list of a job cannot be read; the job fails with it."""

    code = "job_unreadable"


@dataclass(frozen=True, slots=True)
class JobContext:
    """One job as the shell needs it for commands and frames."""

    row: JobRow
    spec: Spec
    plan: JobPlan
    packages: Mapping[str, PackageRef]
    """By reference of the environment version."""
    tasks: JobTasks

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self.row.job_id

    @property
    def attempt_id(self) -> AttemptId:
        """The attempt that runs."""
        return self.row.attempt_id

    @staticmethod
    def is_evaluation(group: GroupId) -> bool:
        """Whether the group's ordinal lies in the range of evaluations."""
        return ordinal_of(group) >= EVALUATION_ORDINAL_BASE

    @staticmethod
    def evaluated_step(group: GroupId) -> int:
        """The step that an evaluation group evaluates."""
        return (ordinal_of(group) - EVALUATION_ORDINAL_BASE) // EVALUATION_ORDINALS_PER_STEP

    def environment(self, group: GroupId) -> int:
        """Place of the group's environment in the spec's list of its purpose."""
        return self.tasks.environment(group)

    def package(self, group: GroupId) -> PackageRef:
        """The package of the group's environment."""
        return self.packages[self._use(group).ref]

    def config_json(self, group: GroupId) -> str:
        """Configuration of the group's environment as JSON."""
        return json.dumps(self._use(group).config, sort_keys=True)

    def task(self, group: GroupId) -> TaskLine:
        """The task of a group."""
        return self.tasks.task(group)

    def task_number(self, group: GroupId) -> int | None:
        """The number by which the core knows a training group's task."""
        return self.tasks.number(group)

    def _use(self, group: GroupId) -> EnvironmentUse:
        uses = self.spec.evaluated if self.is_evaluation(group) else self.spec.environments
        return uses[self.environment(group)]


async def load_context(
    database: Database, blobs: Blobs, row: JobRow, settings: Settings
) -> JobContext:
    """Read everything that running this job needs. Raises JobUnreadable."""
    try:
        spec = read_spec(row.spec)
    except msgspec.ValidationError as error:
        raise JobUnreadable(f"stored spec: {error}") from error
    refs = [use.ref for use in (*spec.environments, *spec.evaluated)]
    async with database.begin() as connection:
        packages = await jobs.packages_of(connection, row.project_id, refs)
    for ref in refs:
        if ref not in packages:
            raise JobUnreadable(f"environment version {ref} is gone")
    tasks = JobTasks(
        seed=spec.seed,
        train=await _train(blobs, row, spec),
        test=await _test(blobs, row, spec),
        weights=tuple(use.weight for use in spec.environments),
    )
    plan = replace(plan_of(row, spec, settings), templates=_templates(packages))
    return JobContext(row, spec, plan, packages, tasks)


def _templates(packages: Mapping[str, PackageRef]) -> tuple[SandboxTemplate, ...]:
    """What nodes make the job's sandboxes of; an environment without a sandbox takes a place only."""
    ceiling = SandboxLimits().memory_bytes
    found = {
        template_name(one.environment_version_id, SandboxPurpose.AGENT): one.has_sandbox
        for one in packages.values()
    }
    return tuple(
        SandboxTemplate(name, ceiling if has else 0) for name, has in sorted(found.items())
    )


async def _train(blobs: Blobs, row: JobRow, spec: Spec) -> tuple[TaskBook, ...]:
    books = []
    for number, use in enumerate(spec.environments):
        name = own_list(number, use.split)
        tasks = await _tasks(blobs, row, name)
        sources = mixed_sources(row.tasks[name].get("sources"))
        if not sources:
            tasks = tasks[: use.limit]
        seed = spec.seed if number == 0 else f"{spec.seed}/{number}"
        books.append(TaskBook(seed, use.shuffle, tasks, sources))
    return tuple(books)


async def _test(blobs: Blobs, row: JobRow, spec: Spec) -> tuple[tuple[TaskLine, ...], ...]:
    lists = []
    for name, use in evaluated_lists(spec):
        tasks = await _tasks(blobs, row, name)
        lists.append(tasks[: evaluated_size(spec, row.tasks[name], use)])
    return tuple(lists)


async def _tasks(blobs: Blobs, row: JobRow, name: str) -> tuple[TaskLine, ...]:
    stored = row.tasks.get(name)
    if stored is None:
        raise JobUnreadable(f"the job has no task list {name}")
    try:
        data = await blobs.read(str(stored["uri"]), str(stored["sha"]))
    except PayloadUnreadable as error:
        raise JobUnreadable(str(error)) from error
    tasks = parse_tasks(data.decode())
    if not tasks:
        raise JobUnreadable(f"the task list {name} is empty")
    return tasks
