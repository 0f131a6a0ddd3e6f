"""Stops all processes of a sandbox and lets them go on: SIGSTOP and SIGCONT from the outside.

A sandbox stands still once two looks in a row have found every thread stopped: what a running process
forks between two looks is seen by the next. Processes that had stopped themselves stay stopped
afterwards. One that waits inside the kernel for a child which stands still (vfork) cannot stop, nor run:
with the signal pending it never gets back to its own code. Programs can notice a pause: a handler of
SIGCONT runs when the sandbox goes on.
"""

import asyncio
import re
import signal
from typing import Final

from sandboxes.runtimes.process.inside import Inside
from venusrl.env.sandbox import SandboxError

STILL: Final = frozenset({b"T", b"t", b"Z", b"X"})
"""Stopped, traced, or ended and not yet collected."""

WAITING: Final = STILL | {b"D"}
"""Or waiting in the kernel."""

_PENDING: Final = re.compile(rb"^ShdPnd:\s+([0-9a-f]+)$", re.MULTILINE)
_STOP_BIT: Final = 1 << (signal.SIGSTOP - 1)

CLEAN_LOOKS: Final = 2

LOOK_INTERVAL_S: Final = 0.002
"""A stop takes effect when the process next leaves the kernel: microseconds, unless it waits for a disk."""

LOOKS_MAX: Final = 1000
"""About two seconds. A sandbox that forks faster than that is not to be had still."""


async def stop(inside: Inside) -> frozenset[str]:
    """Stop everything; the names of what had stopped before. Raises SandboxError, all running again."""
    before = frozenset(name for name in inside.names() if _is_still(inside, name))
    clean = 0
    try:
        for _ in range(LOOKS_MAX):
            moving = [name for name in inside.names() if not _is_still(inside, name)]
            clean = 0 if moving else clean + 1
            if clean == CLEAN_LOOKS:
                return before
            for name in moving:
                inside.send(name, signal.SIGSTOP)
            await asyncio.sleep(LOOK_INTERVAL_S)
    except asyncio.CancelledError:
        go_on(inside, before)
        raise
    go_on(inside, before)
    raise SandboxError("refused", "its processes could not be stopped")


def go_on(inside: Inside, stopped_before: frozenset[str]) -> None:
    """Continue everything that `stop` stopped."""
    for name in inside.names():
        if name not in stopped_before:
            inside.send(name, signal.SIGCONT)


def _is_still(inside: Inside, name: str) -> bool:
    states = inside.states(name)
    if states <= STILL:
        return True
    if not states <= WAITING:
        return False
    pending = _PENDING.search(inside.read(name, "status"))
    return pending is not None and bool(int(pending[1], 16) & _STOP_BIT)
