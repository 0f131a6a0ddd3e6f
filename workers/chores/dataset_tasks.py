"""Task lists of a job from datasets: rows of all of them in the order of the spec, named by source."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stores.system import assets
from stores.system import preparation as store
from venusrl.env.messages import Task
from workers.chores.dataset_rows import lines_of
from workers.chores.datasets import fetch_splits
from workers.chores.handling import ChoreFailed, ChoreTools


@dataclass(frozen=True, slots=True)
class SourceShare:
    """A run of tasks in a list that come from one source, and its weight."""

    name: str
    count: int
    weight: float


@dataclass(frozen=True, slots=True)
class TaskList:
    """Tasks of a split; `sources` tile the list where several datasets give it."""

    tasks: Sequence[Task]
    sources: tuple[SourceShare, ...] = ()


async def dataset_tasks(tools: ChoreTools, job: store.Unprepared) -> dict[str, TaskList]:
    """Lists of the splits that the job's datasets have. Raises ChoreFailed for one that is gone."""
    tasks: dict[str, list[Task]] = {}
    shares: dict[str, list[SourceShare]] = {}
    for use in job.datasets:
        for split, rows in (await _rows(tools, job, use)).items():
            kept = rows[: job.limit] if split == job.train_split else rows
            tasks.setdefault(split, []).extend(kept)
            shares.setdefault(split, []).append(SourceShare(use.ref, len(kept), use.weight))
    return {split: TaskList(tasks[split], tuple(shares[split])) for split in sorted(tasks)}


async def _rows(
    tools: ChoreTools, job: store.Unprepared, use: store.DatasetUse
) -> dict[str, list[Task]]:
    async with tools.database.begin() as connection:
        splits = await assets.ready_splits(connection, job.project_id, use.name, use.version)
    if splits is None:
        raise ChoreFailed("tasks_unloadable", f"the dataset {use.ref} is gone")
    wanted = tuple(one for one in splits if one.name in job.splits)
    with tempfile.TemporaryDirectory(prefix="venus-tasks-") as folder:
        paths = await fetch_splits(tools, wanted, Path(folder))
        return {
            split: await asyncio.to_thread(_named, path, split, use.ref)
            for split, path in paths.items()
        }


def _named(path: Path, split: str, ref: str) -> list[Task]:
    """Rows whose ids name their source, so that two datasets never share one."""
    lines = (line.task for line in lines_of(path, split))
    return [replace(task, id=f"{ref}/{task.id}") for task in lines if task is not None]
