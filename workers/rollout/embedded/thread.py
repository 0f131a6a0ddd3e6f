"""The thread of an embedded engine: it owns the `Core`; what others post runs between two decode steps.

running  -- pause(keep, abort) -->  paused  -- resume -->  running
running  -- pause(wait) -->  draining  -- last running turn ends -->  paused
"""

import asyncio
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import StrEnum
from typing import Final, TypeVar

from domain.engine import EngineRefused, KvMode, PauseMode, Refusal
from infra.logging import get_logger
from workers.rollout.embedded.core import Core

CLOSE_TIMEOUT_S: Final = 10.0
"""How long `close` waits for the decode step in progress."""

T = TypeVar("T")

log = get_logger()


class Mode(StrEnum):
    """What the thread does between calls."""

    RUNNING = "running"
    DRAINING = "draining"
    PAUSED = "paused"
    CLOSED = "closed"


class EngineThread:
    """Runs one core. Everything public may be called from outside, `go_on` only by what is posted."""

    def __init__(self, name: str, core: Core, clock: Callable[[], float]) -> None:
        """`name` is the model's, for the log."""
        self.core = core
        self._mode = Mode.RUNNING
        self._name = name
        self._clock = clock
        self._kv = KvMode.KEEP
        self._drained: list[Future[None]] = []
        self._inbox: list[Callable[[], object]] = []
        self._is_over = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def mode(self) -> Mode:
        """What it does now."""
        return self._mode

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def post(self, call: Callable[[], object]) -> bool:
        """Have the thread run `call` between two steps; False when there is no thread any more."""
        with self._wake:
            if self._is_over:
                return False
            self._inbox.append(call)
            self._wake.notify()
        return True

    async def ask(self, call: Callable[[], T]) -> T:
        """What `call` returns, run by the thread; a refusal of it is raised here."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except EngineRefused as refused:
                answer.set_exception(refused)

        if not self.post(run):
            raise EngineRefused(Refusal.CLOSED, "the engine is closed")
        return await asyncio.wrap_future(answer)

    async def pause(self, mode: PauseMode, kv: KvMode) -> None:
        """Stop decoding at a step boundary; returns when it has stopped."""
        drained: Future[None] = Future()

        def enter() -> None:
            self._kv = kv
            if mode is PauseMode.ABORT:
                self.core.abort(self.core.open_requests(), "paused")
            self._mode = Mode.DRAINING if mode is PauseMode.WAIT else Mode.PAUSED
            self._drained.append(drained)

        await self.ask(enter)
        await asyncio.wrap_future(drained)

    def go_on(self) -> None:
        """Decode again, with the keys that the pause said to keep."""
        self.core.drop_stale_keys(self._kv)
        self._mode = Mode.RUNNING

    async def close(self) -> None:
        """End open requests with `abort` and stop; may be called twice."""

        def stop() -> None:
            self.core.abort(self.core.open_requests(), "closed")
            self._mode = Mode.CLOSED

        self.post(stop)
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while self._mode is not Mode.CLOSED:
                self._turn()
        except Exception as error:
            log.exception("engine.failed", model=self._name)
            self._mode = Mode.CLOSED
            self.core.fail_all(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._refuse_the_rest()
            self.core.close()

    def _turn(self) -> None:
        deadline_s = self.core.expire()
        with self._wake:
            if not self._inbox and not self._has_work():
                wait_s = deadline_s - self._clock()
                self._wake.wait(None if math.isinf(wait_s) else max(wait_s, 0.0))
            calls, self._inbox = self._inbox, []
        for call in calls:
            call()
        if self._mode is Mode.RUNNING or (self._mode is Mode.DRAINING and self.core.active):
            self.core.step(admitting=self._mode is Mode.RUNNING)
        if self._mode is Mode.DRAINING and not self.core.active:
            self._mode = Mode.PAUSED
        if self._mode is Mode.PAUSED:
            self._settle_drained()

    def _has_work(self) -> bool:
        if self._mode is Mode.RUNNING:
            return bool(self.core.active or self.core.waiting)
        return self._mode is Mode.DRAINING

    def _settle_drained(self) -> None:
        drained, self._drained = self._drained, []
        for future in drained:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _refuse_the_rest(self) -> None:
        with self._wake:
            self._is_over = True
            calls, self._inbox = self._inbox, []
        for call in calls:
            call()
        self._settle_drained()
