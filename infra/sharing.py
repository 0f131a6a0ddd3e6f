"""Waiting for a task that several callers share.

`asyncio.shield` makes a caller's cancellation harmless to the task, but the task's own cancellation
looks like the caller's. `shared` tells the two apart.
"""

import asyncio
from typing import TypeVar

T = TypeVar("T")


class WorkCancelled(Exception):
    """The shared task was cancelled by somebody else; the caller itself goes on."""


async def shared(task: "asyncio.Task[T]") -> T:
    """The task's result. Raises WorkCancelled when the task, not the caller, was cancelled."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise WorkCancelled from None
        raise
