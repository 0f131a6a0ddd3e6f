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
from workers.chores.dataset_tasks import TaskList, dataset_tasks
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
    try:
        loaded = await _load(tools, job)
    except (EnvironmentFault, PayloadUnreadable) as error:
        raise ChoreFailed("tasks_unloadable", str(error)) from error
    except SecretUnavailable as error:
        raise ChoreFailed("secret_unavailable", str(error)) from error
    lists = {}
    for split, tasks in loaded.items():
        if not tasks.tasks:
            raise ChoreFailed("no_tasks", f"split {split!r} has no task under this configuration")
        data = _lines(tasks.tasks)
        blob = await tools.blobs.create(tasks_path(sha256(data)), data)
        lists[split] = {"uri": blob.uri, "sha": blob.sha, "count": len(tasks.tasks)}
        if tasks.sources:
            lists[split]["sources"] = [asdict(one) for one in tasks.sources]
    async with tools.database.begin() as connection:
        await store.queue(connection, request.job_id, lists)
    return {"queued": True, "tasks": {split: one["count"] for split, one in lists.items()}}


async def _load(tools: ChoreTools, job: store.Unprepared) -> dict[str, TaskList]:
    """Task lists by split: from the datasets that have it, else from the environment."""
    found = await dataset_tasks(tools, job)
    missing = [split for split in job.splits if split not in found]
    if missing:
        found |= await _from_environment(tools, job, missing)
    return found


async def _from_environment(
    tools: ChoreTools, job: store.Unprepared, splits: Sequence[str]
) -> dict[str, TaskList]:
    names = job.secrets.values()
    values = await opened(tools.settings, tools.database, job.project_id, names)
    secrets = {variable: values[name] for variable, name in job.secrets.items()}
    data = await tools.blobs.read(job.package.uri, job.package.sha)
    with tempfile.TemporaryDirectory(prefix="venus-prepare-") as folder:
        target = readable_package(Path(folder), data)
        manifest = read_manifest(target)
        built = await Dependencies(tools.blobs, tools.settings.home).folder(target)
        with striking(Redactor(values.values()).text):
            process = await start_environment(
                target, manifest, job.config, dependencies=built, secrets=secrets
            )
            try:
                return {split: TaskList(await process.load(split)) for split in splits}
            finally:
                await process.stop()


def _lines(tasks: Sequence[Task]) -> bytes:
    rows: list[dict[str, Any]] = [msgspec.to_builtins(task) for task in tasks]
    return "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode()
