"""Finds the entry class of a package, and its tasks."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

from venusrl.env._runner.faults import RunnerFault, fault_of
from venusrl.env.environment import Environment
from venusrl.env.messages import Json, Task
from venusrl.env.wire import BadRecord, task_from_json, task_to_json

TASKS_MAX: Final = 1_000_000
"""A split larger than this does not fit the memory of the node agent that holds it."""


def entry_class(entry: str) -> type[Environment]:
    """The class that `module:Class` names; a fault of cause `import_failed` says why not."""
    module_name, _, class_name = entry.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (Exception, SystemExit) as error:  # edge of user code
        raise RunnerFault("import_failed", fault_of(error, f"import of {entry}").detail) from error
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise RunnerFault("import_failed", f"{entry} is not a subclass of venusrl.env.Environment")
    return found


def load_tasks(cls: type[Environment], split: str, config: Mapping[str, Json]) -> list[Task]:
    """All tasks of a split, checked: unique ids, at most `TASKS_MAX`, every field of its type."""
    tasks: list[Task] = []
    seen: set[str] = set()
    try:
        for task in cls.load(split, config):
            if not isinstance(task, Task):
                raise BadRecord(f"load gave a {type(task).__name__}, not a Task")
            checked = task_from_json(task_to_json(task))
            if checked.id in seen:
                raise BadRecord(f"two tasks have the id {checked.id}")
            if len(tasks) >= TASKS_MAX:
                raise BadRecord(f"more than {TASKS_MAX} tasks")
            seen.add(checked.id)
            tasks.append(checked)
    except BadRecord as error:
        raise RunnerFault("bad_task", f"split {split}: {error}") from error
    except FileNotFoundError as error:
        raise RunnerFault("bad_task", f"split {split}: no file {error.filename}") from error
    except (Exception, SystemExit) as error:  # edge of user code
        raise fault_of(error, f"load of split {split}") from error
    return tasks
