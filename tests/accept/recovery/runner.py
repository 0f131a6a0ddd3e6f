"""Runs one cell: a small job, the failpoint, the strike, and then everything that must hold."""

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.accept.recovery.cells import Cell, Failpoint, Stimulus
from tests.accept.recovery.strikes import strike
from tests.support import processes
from tests.support.specs import small_job
from tests.support.stack import DIARY, Stack, StackPlan, start_stack
from tests.support.waiting import wait_until
from tests.support.whole_job import assert_released, assert_whole
from venusrl.models.environments import EnvironmentVersion

ALL_UP_WITHIN_S: Final = 90.0
"""Two engines and a trainer load torch, beside whatever else this machine does."""

FIRES_WITHIN_S: Final = 60.0
ENDS_WITHIN_S: Final = 180.0
"""A job takes seconds; replaced hosts load torch again."""

HOLD_S: Final = 1.5
"""How long the process stays at the failpoint: longer than it takes to find the victim."""

ENGINES: Final = 2


CELL_PROPERTY: Final = "cell"
"""Under this name a test reports its row of the closing table, from whichever process it runs in."""

HELD: Final = "ok"


@dataclass(slots=True)
class Matrix:
    """One stack shared by the cells of a run; a cell that fails takes the stack with it."""

    _stack: Stack | None = None
    _number: int = 0

    def run(self, cell: Cell, record: Callable[[str, object], None]) -> None:
        """Run one cell and record its row; a failure carries the logs of what ran meanwhile."""
        stack = self._ready_stack()
        marks, began = stack.log_marks(), time.monotonic()
        self._number += 1
        try:
            run_cell(stack, cell, f"cell-{self._number}")
        except BaseException as error:
            first_line = f"{type(error).__name__}: {error}".splitlines()[0][:60]
            record(CELL_PROPERTY, _row(cell, began, first_line))
            logs = stack.logs_since(marks)
            self._give_up(stack)
            raise AssertionError(f"{cell.name}: {error}\n{logs}") from error
        record(CELL_PROPERTY, _row(cell, began, HELD))

    def close(self) -> None:
        """Stop the stack; nothing of it may be left."""
        stack, self._stack = self._stack, None
        if stack is None:
            return
        try:
            stack.stop()
        finally:
            stack.abandon()
        shutil.rmtree(stack.home, ignore_errors=True)

    def _ready_stack(self) -> Stack:
        if self._stack is None:
            self._stack = start_stack(StackPlan(schedulers=2))
        return self._stack

    def _give_up(self, stack: Stack) -> None:
        """The home stays for whoever looks into the failure."""
        self._stack = None
        stack.abandon()


def _row(cell: Cell, began: float, result: str) -> tuple[str, str, float, str]:
    what = f"{cell.strike.value} {cell.victim or ''}".strip()
    return cell.failpoint.name, what, round(time.monotonic() - began, 1), result


def run_cell(stack: Stack, cell: Cell, ticket: str) -> None:
    """The cell's whole life; raises AssertionError or the client's error for what does not hold."""
    job = stack.client.jobs.create(small_job("diary"))
    wait_until(lambda: _is_all_up(stack), ALL_UP_WITHIN_S, "the job's hosts did not come up")
    stack.failpoints.arm(_entry(cell.failpoint, ticket))
    try:
        with _stimulated(stack, cell.failpoint.stimulus, ticket):
            fired = wait_until(lambda: _fired(stack, ticket), FIRES_WITHIN_S, "it did not fire")
            assert fired is not None
            struck = strike(stack, cell, fired)
            if struck is not None:
                struck.resume()
            stack.client.jobs.wait(job.id, ENDS_WITHIN_S)
    finally:
        stack.failpoints.disarm()
    assert_whole(stack, job.id)
    assert_released(stack)


def _is_all_up(stack: Stack) -> bool:
    """Every possible victim is there: both engines, the trainer, the environment's process."""
    found = stack.processes()
    return bool(
        len(processes.hosts(found, "engine")) == ENGINES
        and processes.hosts(found, "trainer")
        and processes.runners(found)
    )


def _entry(failpoint: Failpoint, ticket: str) -> str:
    return f"{failpoint.name}=sleep:{HOLD_S},count={failpoint.count},id={ticket}"


def _fired(stack: Stack, ticket: str) -> dict[str, Any] | None:
    return next((one for one in stack.failpoints.fired() if one["ticket"] == ticket), None)


@contextmanager
def _stimulated(stack: Stack, stimulus: Stimulus, ticket: str) -> Iterator[None]:
    """Bring the failpoint about; what was asked of the API must be answered in the end."""
    if stimulus is Stimulus.LOSE_ENGINE:
        processes.hosts(stack.processes(), "engine")[-1].send(signal.SIGKILL)
    if stimulus is not Stimulus.PUSH:
        yield
        return
    with _package(ticket) as folder, ThreadPoolExecutor(1) as pool:
        push: Callable[[Path], EnvironmentVersion] = stack.client.environments.push
        pushed: Future[EnvironmentVersion] = pool.submit(push, folder)
        yield
        assert pushed.result(ENDS_WITHIN_S).state == "ready"


@contextmanager
def _package(ticket: str) -> Iterator[Path]:
    """A package that was never pushed before."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(DIARY, Path(scratch) / "pushed"))
        manifest = folder / "venus.toml"
        manifest.write_text(manifest.read_text().replace('"diary"', '"pushed"', 1))
        (folder / "ticket.txt").write_text(ticket)
        yield folder
