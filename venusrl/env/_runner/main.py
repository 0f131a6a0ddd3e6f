"""Entry of an environment process: take the protocol's pipes away from user code, then serve.

The parent starts it inside bubblewrap as
`python -I -S -c "<sys.path>; from venusrl.env._runner.main import main; main()" LIMITS...`.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from typing import BinaryIO, Final

from venusrl.env._runner.channel import open_pipes
from venusrl.env._runner.server import Server

ADDRESS_SPACE_SLACK_BYTES: Final = 4 << 30
"""Address space above the memory limit: libraries map far more than they touch."""

OPEN_FILES_MAX: Final = 512
"""Enough for an environment's own files; no flood of descriptors."""


def main() -> None:
    """Arguments: memory bytes, pids, and the user id to become; 0 leaves each as it is."""
    memory_bytes, pids, uid = (int(argument) for argument in sys.argv[1:4])
    _drop_rights(memory_bytes, pids, uid)
    incoming, outgoing = _take_pipes()
    asyncio.run(_serve(incoming, outgoing))
    os._exit(0)


def _drop_rights(memory_bytes: int, pids: int, uid: int) -> None:
    """Set hard limits; become an own user where we are root, because root has no pids limit."""
    if memory_bytes:
        space = memory_bytes + ADDRESS_SPACE_SLACK_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
    if pids:
        resource.setrlimit(resource.RLIMIT_NPROC, (pids, pids))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_MAX, OPEN_FILES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the protocol to private descriptors; user code finds /dev/null and the log pipe."""
    incoming = os.fdopen(os.dup(0), "rb", buffering=0)
    outgoing = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return incoming, outgoing


async def _serve(incoming: BinaryIO, outgoing: BinaryIO) -> None:
    server = Server(await open_pipes(incoming, outgoing))
    sys.stdout = sys.stderr = server.log
    await server.serve()
