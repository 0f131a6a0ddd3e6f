"""What the shell keeps of each job beside the core's state: spec, tasks, environment package."""

import json
from dataclasses import dataclass

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
from infra.settings import Settings
from scheduler.mixing import mixed_sources
from scheduler.spec import Spec, plan_of, read_spec
from scheduler.tasks import TaskBook, TaskLine, parse_tasks
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
    package: PackageRef
    book: TaskBook

    @property
    def job_id(self) -> JobId:
        """The job's id."""
        return self.row.job_id

    @property
    def attempt_id(self) -> AttemptId:
        """The attempt that runs."""
        return self.row.attempt_id

    @property
    def config_json(self) -> str:
        """Configuration of the environment as JSON."""
        return json.dumps(self.spec.environment.config, sort_keys=True)

    @staticmethod
    def is_evaluation(group: GroupId) -> bool:
        """Whether the group's ordinal lies in the range of evaluations."""
        return ordinal_of(group) >= EVALUATION_ORDINAL_BASE

    @staticmethod
    def evaluated_step(group: GroupId) -> int:
        """The step that an evaluation group evaluates."""
        return (ordinal_of(group) - EVALUATION_ORDINAL_BASE) // EVALUATION_ORDINALS_PER_STEP

    def task(self, group: GroupId) -> TaskLine:
        """The task of a group."""
        return self.book.task(group)


async def load_context(
    database: Database, blobs: Blobs, row: JobRow, settings: Settings
) -> JobContext:
    """Read everything that running this job needs. Raises JobUnreadable."""
    try:
        spec = read_spec(row.spec)
    except msgspec.ValidationError as error:
        raise JobUnreadable(f"stored spec: {error}") from error
    use = spec.environment
    async with database.begin() as connection:
        package = await jobs.package_of(connection, row.job_id)
    if package is None:
        raise JobUnreadable(f"environment version {use.ref} is gone")
    train = await _tasks(blobs, row, use.split)
    test: tuple[TaskLine, ...] = ()
    if spec.evaluation is not None:
        test = await _tasks(blobs, row, spec.evaluation.split)
    sources = mixed_sources(row.tasks[use.split].get("sources"))
    if not sources:
        train = train[: use.limit]
    book = TaskBook(spec.seed, use.shuffle, train, test, sources)
    return JobContext(row, spec, plan_of(row, spec, settings), package, book)


async def _tasks(blobs: Blobs, row: JobRow, split: str) -> tuple[TaskLine, ...]:
    stored = row.tasks.get(split)
    if stored is None:
        raise JobUnreadable(f"the job has no task list of split {split}")
    try:
        data = await blobs.read(str(stored["uri"]), str(stored["sha"]))
    except PayloadUnreadable as error:
        raise JobUnreadable(str(error)) from error
    tasks = parse_tasks(data.decode())
    if not tasks:
        raise JobUnreadable(f"split {split} has no task")
    return tasks
