"""Task lists of a job from datasets: rows of all of them in the order of the spec, named by source."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
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


async def dataset_tasks(
    tools: ChoreTools, project_id: str, part: store.Part
) -> dict[str, TaskList]:
    """Lists of the splits that the datasets of an environment have. Raises ChoreFailed for one that
    is gone."""
    tasks: dict[str, list[Task]] = {}
    shares: dict[str, list[SourceShare]] = {}
    for use in part.datasets:
        for split, rows in (await _rows(tools, project_id, (part, use))).items():
            passed = filtered(part, rows)
            kept = passed[: part.limit] if split == part.limited_split else passed
            tasks.setdefault(split, []).extend(kept)
            shares.setdefault(split, []).append(SourceShare(use.ref, len(kept), use.weight))
    return {split: TaskList(tasks[split], tuple(shares[split])) for split in sorted(tasks)}


def filtered(part: store.Part, tasks: Sequence[Task]) -> Sequence[Task]:
    """Tasks that the environment's filter lets through."""
    return [task for task in tasks if _passes(task, part.filter)] if part.filter else tasks


def _passes(task: Task, wanted: Mapping[str, object]) -> bool:
    """Whether the task's metadata have all the values; null is also what is missing."""
    return all(_is_same(task.metadata.get(name), value) for name, value in wanted.items())


def _is_same(one: object, other: object) -> bool:
    """Equal as in JSON: 1 and 1.0 are, 1 and true are not."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


async def _rows(
    tools: ChoreTools, project_id: str, asked: tuple[store.Part, store.DatasetUse]
) -> dict[str, list[Task]]:
    part, use = asked
    async with tools.database.begin() as connection:
        splits = await assets.ready_splits(connection, project_id, use.name, use.version)
    if splits is None:
        raise ChoreFailed("tasks_unloadable", f"the dataset {use.ref} is gone")
    wanted = tuple(one for one in splits if one.name in part.lists)
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
