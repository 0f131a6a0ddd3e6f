"""Keeps children running: staged start with readiness, restart with back-off, reverse stop.

| loop | consumes | waits for | unblocked by |
|---|---|---|---|
| `_keep`, one per child | exits of its child | readiness, exit, back-off | pidfd, `stop` |
| `start` | readiness of a stage | every child of the stage | `_keep` |

The program has one thread: children are spawned with parent-death signals from the main thread, and
their exits arrive as readable pidfds, not through a thread per child.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from supervisor.launch import Launch, spawn

POLL_S: Final = 0.05
"""How often readiness is asked for; short against the start of any child."""

FIRST_DELAY_S: Final = 0.25
LONGEST_DELAY_S: Final = 15.0
"""Bounds how long a child stays away once what hindered it is gone."""

HEALTHY_AFTER_S: Final = 30.0
"""A child that served so long starts its back-off anew: its next end is another fault."""

FIRST_START_TRIES: Final = 3
"""A child that ends so often before it was ever ready is misconfigured; `up` then fails."""

LOG_BYTES_MAX: Final = 32 * 1024 * 1024
"""A log longer than this is set aside (one older copy is kept) when its process starts."""

LOG_TAIL_BYTES: Final = 2000


class StartError(RuntimeError):
    """A child did not become ready; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Service:
    """A child and how to know that it serves. `is_ready` gets its pid, blocks at most a second."""

    launch: Launch
    is_ready: Callable[[int], bool]
    ready_within_s: float = 60.0


def delay_before_start(failures: int) -> float:
    """Back-off before the next start after this many ends in a row."""
    return min(FIRST_DELAY_S * 2 ** max(failures - 1, 0), LONGEST_DELAY_S) if failures else 0.0


class Child:
    """One supervised process over all its restarts."""

    def __init__(self, service: Service, log: Path, on_change: Callable[[], None]) -> None:
        self.service = service
        self.log = log
        self.starts = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.process: subprocess.Popen[bytes] | None = None
        self._on_change = on_change
        self._is_stopping = asyncio.Event()

    @property
    def name(self) -> str:
        """The service's name."""
        return self.service.launch.name

    @property
    def pid(self) -> int | None:
        """Pid of the running process."""
        return self.process.pid if self.process and self.process.poll() is None else None

    async def keep(self) -> None:
        """Start and restart until `stop`. Raises `StartError` if it never becomes ready."""
        failures = 0
        while not self._is_stopping.is_set():
            await self._wait_or_stop(delay_before_start(failures))
            if self._is_stopping.is_set():
                return
            began = time.monotonic()
            await self._run_once(failures)
            failures = 1 if time.monotonic() - began > HEALTHY_AFTER_S else failures + 1

    async def _run_once(self, failures: int) -> None:
        """One life of the process, from its spawn to its end."""
        set_log_aside(self.log)
        self.process = spawn(self.service.launch, self.log)
        self.starts += 1
        exited = asyncio.ensure_future(wait_for_exit(self.process))
        try:
            became_ready = await self._await_ready(self.process, exited)
            if became_ready:
                self._on_change()
                if not self.ready.done():
                    self.ready.set_result(None)
            elif not self.ready.done() and failures + 1 >= FIRST_START_TRIES:
                raise StartError(self._failure("ended"))
            status = await exited
            if not self._is_stopping.is_set():
                say(f"{self.name} (pid {self.process.pid}) ended with status {status}; restarting")
        finally:
            exited.cancel()

    async def _await_ready(
        self, process: subprocess.Popen[bytes], exited: asyncio.Future[int]
    ) -> bool:
        deadline = time.monotonic() + self.service.ready_within_s
        while not exited.done() and not self._is_stopping.is_set():
            if self.service.is_ready(process.pid):
                return True
            if time.monotonic() > deadline:
                if not self.ready.done():
                    raise StartError(self._failure(f"not ready in {self.service.ready_within_s} s"))
                process.kill()
                return False
            await asyncio.wait({exited}, timeout=POLL_S)
        return False

    async def _wait_or_stop(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._is_stopping.wait(), seconds)
        except TimeoutError:
            return

    def _failure(self, what: str) -> str:
        return f"{self.name}: {what}; the end of {self.log}:\n{tail(self.log)}"

    async def stop(self) -> None:
        """Ask the process to stop, kill it after its grace time, restart it no more."""
        self._is_stopping.set()
        process, launch = self.process, self.service.launch
        if process is None or process.poll() is not None:
            return
        process.send_signal(launch.stop_signal)
        try:
            await asyncio.wait_for(wait_for_exit(process), launch.stop_grace_s)
        except TimeoutError:
            say(f"{self.name} did not stop within {launch.stop_grace_s:.0f} s: killed")
            process.kill()
            await wait_for_exit(process)


class Supervisor:
    """All children of one installation, in stages."""

    def __init__(self, logs: Path, on_change: Callable[[], None] = lambda: None) -> None:
        self._logs = logs
        self._on_change = on_change
        self._stages: list[list[Child]] = []
        self._tasks: dict[asyncio.Task[None], Child] = {}

    async def start(self, services: Sequence[Service]) -> None:
        """Start one stage and wait until all of it is ready. Raises `StartError`."""
        stage = [
            Child(service, self._logs / f"{service.launch.name}.log", self._on_change)
            for service in services
        ]
        self._stages.append(stage)
        tasks = {asyncio.create_task(child.keep(), name=child.name): child for child in stage}
        self._tasks |= tasks
        ready = asyncio.create_task(_all_ready(stage))
        try:
            # A keeper's task ends only by a failed start, so that the first to end decides.
            await asyncio.wait({ready, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    await task
            await ready
        finally:
            ready.cancel()

    async def watch(self) -> None:
        """Until cancelled; raises what a keeper raised, which would be our own fault."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Stop the last stage first; the children of a stage stop together."""
        for stage in reversed(self._stages):
            await asyncio.gather(*(child.stop() for child in stage))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def pids(self) -> Mapping[str, int]:
        """Pid of every running child by name."""
        children = [child for stage in self._stages for child in stage]
        return {child.name: child.pid for child in children if child.pid is not None}


async def _all_ready(stage: Sequence[Child]) -> None:
    for child in stage:
        await asyncio.shield(child.ready)


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """The exit status, awaited through a pidfd."""
    if (status := process.poll()) is not None:
        return status
    loop, descriptor = asyncio.get_running_loop(), os.pidfd_open(process.pid)
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _complete, ended)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.wait()


async def run_to_end(launch: Launch, log: Path) -> None:
    """Run a child that ends by itself. Raises `StartError` when it ends badly."""
    process = spawn(launch, log)
    try:
        status = await wait_for_exit(process)
    except asyncio.CancelledError:
        process.kill()
        process.wait()
        raise
    if status != 0:
        raise StartError(f"{launch.name}: ended with {status}; the end of {log}:\n{tail(log)}")


def set_log_aside(log: Path) -> None:
    """Begin a new file when the log has grown long."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".old.log"))


def tail(log: Path) -> str:
    """The end of a log."""
    if not log.exists():
        return "(no log)"
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


def say(text: str) -> None:
    """One line for the person at the terminal."""
    sys.stderr.write(f"venus: {text}\n")
    sys.stderr.flush()
