"""The thread of an embedded engine: it owns the `Core`; what others post runs between two decode steps.

running  -- pause(keep, abort) -->  paused  -- resume -->  running
running  -- pause(wait) -->  draining  -- last running turn ends -->  paused
draining -- resume, or its callers leave -->  running
"""

import asyncio
import math
import threading
from collections import deque
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
    """Runs one core. What is public is called from outside, `go_on` and `rely` only by what is posted."""

    def __init__(self, name: str, core: Core, clock: Callable[[], float]) -> None:
        """`name` is the model's, for the log."""
        self.core = core
        self._mode = Mode.RUNNING
        self._name = name
        self._clock = clock
        self._kv = KvMode.KEEP
        self._drained: list[Future[None]] = []
        self._latest: Future[None] | None = None
        """Of the one caller who may still take the pause back; None when others build on it."""
        self._before = Mode.RUNNING
        self._inbox: deque[Callable[[], object]] = deque()
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
        """Have the thread run `call` between two steps; False when there is no thread any more.

        What `call` raises ends the engine: a call that can fail tells its caller (`ask`).
        """
        with self._wake:
            if self._is_over:
                return False
            self._inbox.append(call)
            self._wake.notify()
        return True

    async def ask(self, call: Callable[[], T]) -> T:
        """What `call` returns or raises, run by the thread. Not run for a caller that has left."""
        answer: Future[T] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                if self._mode is Mode.CLOSED:
                    raise EngineRefused(Refusal.CLOSED, "the engine is closed")
                answer.set_result(call())
            except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
                answer.set_exception(error)

        if not self.post(run):
            raise EngineRefused(Refusal.CLOSED, "the engine is closed")
        return await asyncio.wrap_future(answer)

    async def pause(self, mode: PauseMode, kv: KvMode) -> None:
        """Stop decoding at a step boundary; returns when it has stopped, or was resumed before.

        A caller that leaves before it knows has paused nothing.
        """
        drained: Future[None] = Future()

        def enter() -> None:
            if self._mode is not Mode.DRAINING:
                self._before = self._mode
            self._kv = kv
            if mode is PauseMode.ABORT:
                self.core.abort(self.core.open_requests(), "paused")
            self._mode = Mode.DRAINING if mode is PauseMode.WAIT else Mode.PAUSED
            self._drained.append(drained)
            self._latest = drained

        try:
            await self.ask(enter)
            await asyncio.wrap_future(drained)
        except asyncio.CancelledError:
            self.post(lambda: self._give_up(drained))
            raise

    def rely(self) -> None:
        """The pause in force is needed from now on, whoever asked for it; on the thread."""
        self._latest = None

    def go_on(self) -> None:
        """Decode again, with the keys that the pause said to keep."""
        self.core.drop_stale_keys(self._kv)
        self._mode = Mode.RUNNING
        self._settle_drained()

    async def close(self) -> None:
        """End open requests with `abort` and stop; may be called twice."""

        def stop() -> None:
            self.core.abort(self.core.open_requests(), "closed")
            self._mode = Mode.CLOSED

        self.post(stop)
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        cause: str | None = None
        try:
            while self._mode is not Mode.CLOSED:
                self._turn()
        except Exception as error:
            log.exception("engine.failed", model=self._name)
            self._mode = Mode.CLOSED
            cause = f"{type(error).__name__}: {error}"
            self.core.fail_all(cause)
            raise
        finally:
            self._refuse_the_rest(cause)
            self.core.close()

    def _turn(self) -> None:
        deadline_s = self.core.expire()
        with self._wake:
            if not self._inbox and not self._has_work():
                wait_s = deadline_s - self._clock()
                self._wake.wait(None if math.isinf(wait_s) else max(wait_s, 0.0))
            count = len(self._inbox)
        for _ in range(count):
            # One at a time: what a call leaves behind when it ends the engine is still answered.
            self._inbox.popleft()()
        if self._mode is Mode.RUNNING or (self._mode is Mode.DRAINING and self.core.active):
            self.core.step(admitting=self._mode is Mode.RUNNING)
        if self._mode is Mode.DRAINING and not self.core.active:
            # Who has left meanwhile is not told, and has paused nothing (`_give_up`).
            self._mode = Mode.PAUSED
        if self._mode is Mode.PAUSED:
            self.core.rest()
            self._settle_drained()

    def _give_up(self, drained: Future[None]) -> None:
        """The caller of a pause has left: without others it ends, unless somebody built on it."""
        if drained in self._drained:
            self._drained.remove(drained)
            is_over = self._mode is Mode.DRAINING and not self._drained
        else:
            is_over = self._mode is Mode.PAUSED and self._latest is drained
        if is_over:
            self._mode = self._before

    def _has_work(self) -> bool:
        if self._mode is Mode.RUNNING:
            return self.core.has_work
        return self._mode is Mode.DRAINING

    def _settle_drained(self, error: EngineRefused | None = None) -> None:
        drained, self._drained = self._drained, []
        told = [future for future in drained if future.set_running_or_notify_cancel()]
        for future in told:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        if told:
            self._latest = told[0] if len(told) == 1 else None

    def _refuse_the_rest(self, cause: str | None) -> None:
        """Answer what was posted and will not be done, and who waits for a pause."""
        with self._wake:
            self._is_over = True
        self._settle_drained(None if cause is None else EngineRefused(Refusal.CLOSED, cause))
        while self._inbox:
            try:
                self._inbox.popleft()()
            except Exception:
                log.exception("engine.call_failed", model=self._name)
