"""What user code prints on this node: kept while its try lives, stored when the try has ended.

```
runner's log frames -> OutputBook: one tail a try, a graded rollout, or the process itself
try ended, group graded, attempt released -> object of JSON lines -> row, by an outbox
```
A tail keeps the last TAIL_BYTES; an attempt stores ATTEMPT_BYTES and as much again of failed tries,
so that no chatty environment fills the store. Secrets are struck out before a line is kept. What a
node agent that dies had not stored is lost with it.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from domain.errors import ObjectNotWritten, PayloadUnreadable
from domain.ids import AttemptId, RolloutId
from infra.clock import Clock
from infra.ids import IdSource
from infra.logging import get_logger, redact_text
from infra.names import output_path
from stores.blobs import Blobs
from stores.system import outputs
from stores.system.outputs import Output
from stores.unit_of_work import AsyncConnection, HostFence

TAIL_BYTES: Final = 64 << 10
"""Of text kept of one try: the end of it is what tells why it failed."""

ATTEMPT_BYTES: Final = 64 << 20
"""Of text that this process stores of one attempt, and once more for failed tries alone."""

TAILS_MAX: Final = 4096
"""Open tails of one attempt: more than a node holds tries; user code cannot invent more."""

CLOSE_S: Final = 2.0
"""What a node that ends may spend on the last outputs, well within its keeper's grace."""

LINE_BYTES: Final = 8
"""Counted for a line beside its text, so that empty lines are bounded too."""

INSTANCE: Final = re.compile(r"(ro_[0-9a-z_]{1,80})(?:/([0-9]{1,6}))?")
"""How a runner names what prints: a try of a rollout, or a rollout that is graded."""


@dataclass(frozen=True, slots=True, order=True)
class Printer:
    """Who prints in an attempt: a try, a graded rollout (no try), or its process (no rollout)."""

    rollout_id: str = ""
    try_: int = 0

    @property
    def component(self) -> str:
        """`environment` or `grader`."""
        return "grader" if self.rollout_id and not self.try_ else "environment"


PROCESS: Final = Printer()


@dataclass(slots=True)
class _Tail:
    """The last lines of one printer, each with seconds since the first one."""

    started_at: datetime
    started: float
    lines: deque[tuple[float, str]] = field(default_factory=deque)
    size: int = 0
    lost: int = 0

    def add(self, at: float, text: str) -> None:
        self.lines.append((round(at - self.started, 3), text))
        self.size += _weight(text)
        while self.size > TAIL_BYTES and len(self.lines) > 1:
            self.size -= _weight(self.lines.popleft()[1])
            self.lost += 1


def _weight(text: str) -> int:
    return len(text.encode("utf-8", "replace")) + LINE_BYTES


@dataclass(slots=True)
class _Book:
    """One attempt's open tails and what of its room is used."""

    tails: dict[Printer, _Tail] = field(default_factory=dict)
    stored: int = 0
    stored_failed: int = 0


class Outputs(Protocol):
    """What tells when a printer has ended; none of it waits."""

    def ended(self, attempt_id: AttemptId, rollout_id: str, try_: int, *, failed: bool) -> None:
        """A try has ended: store what it printed."""
        ...

    def graded(self, attempt_id: AttemptId, rollouts: Sequence[str]) -> None:
        """A grading of these rollouts is over."""
        ...

    def released(self, attempt_id: AttemptId) -> None:
        """The attempt is over; nothing of it prints any more."""
        ...


class Unkept:
    """Nobody keeps what is printed: a node without stores, in tests."""

    def ended(self, attempt_id: AttemptId, rollout_id: str, try_: int, *, failed: bool) -> None:
        """Ignored."""

    def graded(self, attempt_id: AttemptId, rollouts: Sequence[str]) -> None:
        """Ignored."""

    def released(self, attempt_id: AttemptId) -> None:
        """Ignored."""


@dataclass(slots=True)
class OutputBook:
    """`Outputs` over an object store. `put` hands a row over and never waits."""

    blobs: Blobs
    clock: Clock
    put: Callable[[Output], None]
    ids: IdSource = field(default_factory=IdSource)
    lost: int = 0
    """Outputs that found no room."""
    _books: dict[AttemptId, _Book] = field(default_factory=dict)
    _writing: set["asyncio.Task[None]"] = field(default_factory=set)

    def sink(self, attempt_id: AttemptId) -> Callable[[str, str], None]:
        """Where a process of the attempt sends its lines."""
        return lambda instance, text: self.add(attempt_id, instance, text)

    def add(self, attempt_id: AttemptId, instance: str, text: str) -> None:
        """Keep one line. A process speaks for rollouts of its own attempt only."""
        book = self._books.setdefault(attempt_id, _Book())
        printer = _printer(attempt_id, instance)
        if printer not in book.tails and len(book.tails) >= TAILS_MAX:
            printer = PROCESS
        now = self.clock.monotonic()
        tail = book.tails.get(printer)
        if tail is None:
            tail = book.tails[printer] = _Tail(self.clock.now(), now)
        tail.add(now, redact_text(text))

    def ended(self, attempt_id: AttemptId, rollout_id: str, try_: int, *, failed: bool) -> None:
        """Store what a try printed; of a failed one also what its process said for nobody."""
        self._store(attempt_id, Printer(rollout_id, try_), failed=failed)
        if failed:
            self._store(attempt_id, PROCESS, failed=True)

    def graded(self, attempt_id: AttemptId, rollouts: Sequence[str]) -> None:
        """Store what graders of these rollouts printed."""
        for rollout in rollouts:
            self._store(attempt_id, Printer(rollout), failed=False)

    def released(self, attempt_id: AttemptId) -> None:
        """Store what is left of an attempt and forget it."""
        book = self._books.get(attempt_id)
        if book is None:
            return
        for printer in sorted(book.tails):
            self._store(attempt_id, printer, failed=False)
        del self._books[attempt_id]

    async def close(self) -> None:
        """Store everything that is left, if that is quick."""
        for attempt_id in list(self._books):
            self.released(attempt_id)
        if self._writing:
            await asyncio.wait(self._writing, timeout=CLOSE_S)
        for task in self._writing:
            task.cancel()

    def _store(self, attempt_id: AttemptId, printer: Printer, *, failed: bool) -> None:
        book = self._books.get(attempt_id)
        tail = None if book is None else book.tails.pop(printer, None)
        if book is None or tail is None:
            return
        if book.stored + tail.size <= ATTEMPT_BYTES:
            book.stored += tail.size
        elif failed and book.stored_failed + tail.size <= ATTEMPT_BYTES:
            book.stored_failed += tail.size
        else:
            self.lost += 1
            return
        task = asyncio.create_task(self._write(attempt_id, printer, tail))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, attempt_id: AttemptId, printer: Printer, tail: _Tail) -> None:
        output_id = self.ids.new("out")
        data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in tail.lines)
        try:
            path = output_path(attempt_id, output_id)
            blob = await self.blobs.create(path, data.encode("utf-8", "replace"))
        except (ObjectNotWritten, PayloadUnreadable, FileExistsError) as error:
            self.lost += 1
            get_logger().warning("output.not_stored", attempt_id=attempt_id, cause=str(error))
            return
        self.put(
            Output(
                id=output_id,
                attempt_id=attempt_id,
                rollout_id=RolloutId(printer.rollout_id) if printer.rollout_id else None,
                try_=printer.try_ or None,
                component=printer.component,
                uri=blob.uri,
                sha=blob.sha,
                size=blob.size,
                lines=len(tail.lines),
                lost=tail.lost,
                started_at=tail.started_at,
            )
        )


def _printer(attempt_id: AttemptId, instance: str) -> Printer:
    """Who an instance name stands for; the process itself for a name of no rollout of its attempt."""
    found = INSTANCE.fullmatch(instance)
    own = f"ro_{attempt_id.removeprefix('att_')}_"
    if found is None or not found[1].startswith(own):
        return PROCESS
    return Printer(found[1], int(found[2] or 0))


@dataclass(frozen=True, slots=True)
class OutputWriter:
    """Writes rows under the node's fence."""

    fence: HostFence

    async def write(self, connection: AsyncConnection, found: Sequence[Output]) -> None:
        """Write them in order."""
        await outputs.write(connection, found, self.fence.host_id, self.fence.epoch)
