"""The last step of a job from its epochs, once its tasks are counted.

A step trains `groups_per_batch` groups, so epochs make floor(epochs * tasks / groups_per_batch) steps,
at least one. Groups that are dropped (no variance, stale) are drawn besides and count nothing.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from domain.task_lists import own_list
from workers.chores.handling import ChoreFailed

POINTER: Final = "/stop/max_steps"

MAX_STEPS_MAX: Final = 9_999
"""Steps of one job at most; the same number as in `venusrl/models/spec_base.py`."""


def bounded_spec(
    spec: Mapping[str, Any], lists: Mapping[str, Mapping[str, Any]], start: tuple[int, int]
) -> Mapping[str, Any]:
    """The spec with the smaller of `stop.max_steps` and its epochs as last step, and why.

    `start` is the step and the next ordinal that the attempt begins with. Raises ChoreFailed when
    nothing is left to do.
    """
    stop = spec["stop"]
    if stop.get("max_epochs") is None:
        return spec
    base_step, next_ordinal = start
    tasks = tasks_in(spec, lists)
    batch = spec["rollout"]["groups_per_batch"]
    steps = steps_of(stop["max_epochs"], tasks, batch)
    # A branch onto other tasks counts its epochs from its own start.
    last = steps if next_ordinal else base_step + steps
    if last <= base_step:
        detail = f"{_words(stop, tasks, batch)} end at step {last}; it starts at {base_step}"
        raise ChoreFailed("nothing_left", detail)
    last = min(last, MAX_STEPS_MAX)
    if stop.get("max_steps") is not None and stop["max_steps"] <= last:
        return spec
    said = [one for one in spec.get("resolved", ()) if one["pointer"] != POINTER]
    said.append({"pointer": POINTER, "value": last, "reason": _words(stop, tasks, batch)})
    return {**spec, "stop": {**stop, "max_steps": last}, "resolved": said}


def tasks_in(spec: Mapping[str, Any], lists: Mapping[str, Mapping[str, Any]]) -> int:
    """Tasks of one epoch: those of every environment that is trained on, each once."""
    counted = 0
    for number, use in enumerate(spec["environments"]):
        stored = lists[own_list(number, use["split"])]
        # Where datasets give the tasks, the limit has cut each of them already.
        limit = None if stored.get("sources") else use["limit"]
        count = int(stored["count"])
        counted += count if limit is None else min(count, limit)
    return counted


def steps_of(epochs: float, tasks: int, batch: int) -> int:
    """Steps that train each task so many times; at least one."""
    return max(1, int(Fraction(str(epochs)) * tasks / batch))


def _words(stop: Mapping[str, Any], tasks: int, batch: int) -> str:
    """Why; the number itself stands beside it."""
    return f"{stop['max_epochs']:g} epochs of {tasks} tasks in batches of {batch}"
