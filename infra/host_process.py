"""A host process under its keeper: birth certificate, lease deadline, progress heartbeat.

The keeper writes length-prefixed msgpack on the host's stdin: first `Birth`, then a `Renewed` per
lease renewal. The host writes a `Progress` per second on its stdout. A host whose deadline passes by
its own monotonic clock, or whose keeper is gone (end of stdin), exits at once from a thread of its
own: a blocked event loop or a process that was stopped and woke up cannot outlive its lease.
"""

import asyncio
import os
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import IO, Final, TypeVar

import msgspec

from domain.ids import AttemptId, HostId, JobId
from infra import failpoints
from infra.logging import configure, get_logger
from infra.settings import Settings

EXIT_LEASE_ENDED: Final = 75
"""Exit status of a host whose lease ended; its keeper, if any, needs no other cause."""

EXIT_FAULT: Final = 70
"""Exit status of a host whose main coroutine raised."""

PROGRESS_INTERVAL_S: Final = 0.5
"""Well under every progress bound, so that one late write never kills a healthy host."""

DEADLINE_CHECK_S: Final = 0.1
"""How late a host notices the end of its lease; part of the guard that keepers add."""

_HEADER: Final = struct.Struct(">I")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Birth:
    """What a host is. `deadline` is a CLOCK_MONOTONIC reading, shared by processes of one machine."""

    host_id: HostId
    epoch: int
    kind: str
    key: bytes
    attempt_id: AttemptId | None
    job_id: JobId | None
    deadline: float


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease now ends at this CLOCK_MONOTONIC reading."""

    deadline: float


@dataclass(frozen=True, slots=True)
class Progress:
    """The host's loop lives and is in this mode (`load`, `decode`, `sync`, `train`, `idle`)."""

    mode: str
    cause: str = ""
    """Set once when the host is about to exit for a reason that its keeper should record."""


class HostContext:
    """What a host's main coroutine gets; `mode` bounds how long the host may stay silent."""

    def __init__(self, birth: Birth, settings: Settings) -> None:
        self.birth = birth
        self.settings = settings
        self.mode = "load"
        self.stopping = asyncio.Event()

    @property
    def host_id(self) -> HostId:
        """This host's lease row."""
        return self.birth.host_id

    @property
    def epoch(self) -> int:
        """Fencing number of every write of this host."""
        return self.birth.epoch

    def fault(self, cause: str) -> "FaultExit":
        """An exception that ends the host and tells the keeper why."""
        return FaultExit(cause)


class FaultExit(Exception):
    """Ends the host with a cause that reaches the lease row."""


def write_record(stream: IO[bytes], record: object) -> None:
    """Write one length-prefixed msgpack record."""
    data = msgspec.msgpack.encode(record)
    stream.write(_HEADER.pack(len(data)) + data)
    stream.flush()


def read_record(stream: IO[bytes], kind: type[T]) -> T | None:
    """Read one record, or None at the end of the stream."""
    head = stream.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return None
    (size,) = _HEADER.unpack(head)
    return msgspec.msgpack.decode(stream.read(size), type=kind)


class _Lease:
    """Deadline kept by two threads: one reads renewals, one watches the clock."""

    def __init__(self, stream: IO[bytes], deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline
        for target in (self._read, self._watch):
            threading.Thread(target=target, daemon=True).start()

    def _read(self) -> None:
        while (renewed := read_record(self._stream, Renewed)) is not None:
            self._deadline = renewed.deadline
        os._exit(EXIT_LEASE_ENDED)

    def _watch(self) -> None:
        while time.monotonic() < self._deadline:
            time.sleep(DEADLINE_CHECK_S)
        os._exit(EXIT_LEASE_ENDED)


def run_host(main: Callable[[HostContext], Awaitable[None]]) -> None:
    """Run a host's main coroutine until its lease ends; never returns.

    `main` returns when the host is done (its attempt ended), raises FaultExit to end with a cause.
    """
    settings = Settings.from_env()
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Prints of libraries go to the log, never into the protocol.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    birth = read_record(stdin, Birth)
    if birth is None:
        os._exit(EXIT_LEASE_ENDED)
    configure(birth.kind, settings.log_level)
    failpoints.configure(birth.kind)
    _Lease(stdin, birth.deadline)
    os._exit(asyncio.run(_supervised(main, HostContext(birth, settings), stdout)))


async def _supervised(
    main: Callable[[HostContext], Awaitable[None]], context: HostContext, stdout: IO[bytes]
) -> int:
    log = get_logger().bind(host_id=context.host_id, epoch=context.epoch)
    beats = asyncio.create_task(_beat(context, stdout))
    try:
        await main(context)
        return 0
    except FaultExit as fault:
        log.error("host.fault", cause=str(fault))
        write_record(stdout, Progress(context.mode, str(fault)))
        return EXIT_FAULT
    except Exception as error:  # the process edge: recorded, then the process ends
        log.exception("host.crashed")
        write_record(stdout, Progress(context.mode, f"{type(error).__name__}: {error}"))
        return EXIT_FAULT
    finally:
        beats.cancel()
        sys.stderr.flush()


async def _beat(context: HostContext, stdout: IO[bytes]) -> None:
    while True:
        try:
            write_record(stdout, Progress(context.mode))
        except OSError:
            os._exit(EXIT_LEASE_ENDED)
        await asyncio.sleep(PROGRESS_INTERVAL_S)
