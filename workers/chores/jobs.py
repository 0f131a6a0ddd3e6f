"""Prepares a job: the environment loads the splits that the job uses, under the job's configuration.

The task lists go to the object store; the job leaves `validating` for `queued`, or fails with the
environment's own words.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from domain.errors import PayloadUnreadable, SecretUnavailable
from infra.codec import convert
from infra.logging import striking
from infra.names import tasks_path
from stores.blobs import sha256
from stores.system import preparation as store
from stores.system.operations import TakenOperation
from venusrl.env.host.manifest import read_manifest
from venusrl.env.host.ports import EnvironmentFault
from venusrl.env.host.process import start_environment
from venusrl.env.messages import Task
from venusrl.env.redaction import Redactor
from workers.chores.dataset_tasks import TaskList, dataset_tasks, filtered
from workers.chores.epochs import bounded_spec
from workers.chores.handling import ChoreFailed, ChoreTools, readable_package
from workers.dependencies import Dependencies
from workers.secrets import opened


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """What the operation's row asks for."""

    job_id: str


async def prepare(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """Load and store the task lists, then queue the job; repeating it changes nothing."""
    try:
        request = convert(dict(operation.request), PrepareRequest)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    async with tools.database.begin() as connection:
        job = await store.unprepared(connection, request.job_id)
    if job is None:
        return {"queued": False}
    lists: dict[str, Mapping[str, Any]] = {}
    for part in job.parts:
        try:
            loaded = await _load(tools, job, part)
        except (EnvironmentFault, PayloadUnreadable) as error:
            raise ChoreFailed("tasks_unloadable", f"{part.ref}: {error}") from error
        except SecretUnavailable as error:
            raise ChoreFailed("secret_unavailable", str(error)) from error
        for split, tasks in loaded.items():
            lists[part.lists[split]] = await _stored(tools, part, (split, tasks))
    async with tools.database.begin() as connection:
        spec = await store.waiting_spec(connection, request.job_id)
        if spec is None:
            return {"queued": False}
        bounded = bounded_spec(spec, lists, (job.base_step, job.next_ordinal))
        await store.queue(connection, request.job_id, lists, bounded)
    return {"queued": True, "tasks": {name: one["count"] for name, one in lists.items()}}


async def _stored(
    tools: ChoreTools, part: store.Part, loaded: tuple[str, TaskList]
) -> Mapping[str, Any]:
    """Store a task list. Raises ChoreFailed for one without a task."""
    split, tasks = loaded
    if not tasks.tasks:
        raise ChoreFailed(*_empty(part, split))
    data = _lines(tasks.tasks)
    blob = await tools.blobs.create(tasks_path(sha256(data)), data)
    stored: dict[str, Any] = {"uri": blob.uri, "sha": blob.sha, "count": len(tasks.tasks)}
    if tasks.sources:
        stored["sources"] = [asdict(one) for one in tasks.sources]
    return stored


def _empty(part: store.Part, split: str) -> tuple[str, str]:
    if part.filter:
        wanted = json.dumps(dict(part.filter), sort_keys=True)
        detail = f"no task of split {split!r} of {part.ref} passes {part.pointer}/filter {wanted}"
        return "filter_matches_nothing", detail
    return "no_tasks", f"split {split!r} of {part.ref} has no task under this configuration"


async def _load(tools: ChoreTools, job: store.Unprepared, part: store.Part) -> dict[str, TaskList]:
    """Task lists by split: from the datasets that have it, else from the environment."""
    found = await dataset_tasks(tools, job.project_id, part)
    missing = [split for split in part.lists if split not in found]
    if missing:
        found |= await _from_environment(tools, (job, part), missing)
    return found


async def _from_environment(
    tools: ChoreTools, asked: tuple[store.Unprepared, store.Part], splits: Sequence[str]
) -> dict[str, TaskList]:
    job, part = asked
    if part.package is None:
        raise ChoreFailed("tasks_unloadable", f"environment version {part.ref} is gone")
    names = job.secrets.values()
    values = await opened(tools.settings, tools.database, job.project_id, names)
    secrets = {variable: values[name] for variable, name in job.secrets.items()}
    data = await tools.blobs.read(part.package.uri, part.package.sha)
    with tempfile.TemporaryDirectory(prefix="venus-prepare-") as folder:
        target = readable_package(Path(folder), data)
        manifest = read_manifest(target)
        built = await Dependencies(tools.blobs, tools.settings.home).folder(target)
        with striking(Redactor(values.values()).text):
            process = await start_environment(
                target, manifest, part.config, dependencies=built, secrets=secrets
            )
            try:
                loaded = {split: await process.load(split) for split in splits}
            finally:
                await process.stop()
    return {split: TaskList(filtered(part, tasks)) for split, tasks in loaded.items()}


def _lines(tasks: Sequence[Task]) -> bytes:
    rows: list[dict[str, Any]] = [msgspec.to_builtins(task) for task in tasks]
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode()
