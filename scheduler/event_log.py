"""The leader's event log of one term: every accepted event and the hash of its commands.

    leader._fold --note--> bounded queue --write--> segment --create--> object store

`note` never waits: where the store is away for so long that the queue is full, records are dropped,
counted, and the log names the gap. Encoding and compression run in a thread of their own.
"""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from domain.commands import Command
from domain.errors import ObjectNotWritten
from domain.event_log import LogEntry, LogGap, LogHeader, LogRecord, kinds_of, sha_of
from domain.events import Event
from domain.ids import JobId
from domain.plan import Pool
from infra.event_log import code_identity, encode_segment
from infra.logging import get_logger
from infra.names import event_log_path
from scheduler.core.refusals import RefusalReason
from stores.blobs import Blobs

SEGMENT_RECORDS_MAX: Final = 20_000
"""A segment stays a few megabytes unpacked, so that one can be read and sent whole."""

SEGMENT_COMMANDS_MAX: Final = 100_000
"""Commands of a segment's records: a policy publication gives one for every rollout."""

SEGMENT_S: Final = 10.0
"""What a leader that is killed loses of its log at most; one small object each is little."""

LOOK_S: Final = 0.5
"""How late a full segment is noticed."""

WAITING_MAX: Final = 200_000
"""Records that wait for the store: some hundred megabytes, minutes of the busiest pool."""

AGAIN_S: Final = 2.0
"""Between two attempts to store a segment."""

CLOSE_S: Final = 3.0
"""For the last segment of a leader that steps down in order; a stop must not hang on the store."""


@dataclass(frozen=True, slots=True)
class _Noted:
    """A step that waits to be written."""

    number: int
    now: float
    event: Event
    commands: tuple[Command, ...]
    quarantined: JobId | None


@dataclass(frozen=True, slots=True)
class _Made:
    """A segment that is to be stored, with the number of waiting records that it holds."""

    path: str
    data: bytes
    records: int
    is_last: bool


class EventLog:
    """The log of one term. `refused` is the core's own counter of refused events."""

    def __init__(
        self,
        blobs: Blobs,
        term: int,
        pool: Pool,
        checking: bool,
        *,
        refused: Counter[RefusalReason],
    ) -> None:
        self._blobs = blobs
        self._term = term
        self._pool = pool
        self._checking = checking
        self.refused = refused
        self._opened_at = time.time()
        self._code = code_identity()
        self._waiting: deque[_Noted | LogGap] = deque()
        self._number = 0
        self._now = self._opened_at
        """Of the newest step."""
        self._is_ended = False
        """The last segment that was stored says that it is the last."""
        self._commands = 0
        self._segment = 0
        self._made: _Made | None = None
        self._log = get_logger().bind(term=term)
        self.dropped = 0
        """Records that came while the queue was full."""

    def note(
        self,
        now: float,
        event: Event,
        commands: Sequence[Command],
        quarantined: JobId | None = None,
    ) -> None:
        """Take one step; never waits, never raises."""
        number, self._number = self._number, self._number + 1
        self._now = now
        if len(self._waiting) >= WAITING_MAX:
            self._drop(number)
            return
        self._commands += len(commands)
        self._waiting.append(_Noted(number, now, event, tuple(commands), quarantined))

    async def run(self) -> None:
        """Write segments for ever; cancelled at the end of the term, after which `close` is due."""
        began = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            is_full = (
                len(self._waiting) >= SEGMENT_RECORDS_MAX or self._commands >= SEGMENT_COMMANDS_MAX
            )
            is_due = is_full or self._made is not None or time.monotonic() - began >= SEGMENT_S
            if not is_due:
                continue
            began = time.monotonic()
            if not await self._write():
                self._log.warning("event_log.waits", records=len(self._waiting))
                await asyncio.sleep(AGAIN_S)

    async def close(self) -> None:
        """Store what waits, if the store takes it at once, and that the log ends there."""
        self._is_ended = self._number == 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._has_more() and await self._write(closing=True):
                    pass
        if self._waiting:
            self._log.warning("event_log.cut", records=len(self._waiting))

    def _has_more(self) -> bool:
        return not self._is_ended and bool(self._next() or not self._waiting)

    def _drop(self, number: int) -> None:
        last = self._waiting[-1]
        self.dropped += 1
        if isinstance(last, LogGap):
            self._waiting[-1] = LogGap(last.number, last.count + 1)
            return
        self._log.warning("event_log.dropping", number=number)
        self._waiting.append(LogGap(number, 1))

    async def _write(self, closing: bool = False) -> bool:
        """Store the next segment; whether the store took it. Its records wait until then.

        The same bytes are offered again: a create that failed may have taken effect.
        """
        if self._made is None:
            taken = self._next()
            is_last = closing and len(taken) == len(self._waiting)
            if not taken and not is_last:
                return True
            header = self._header(taken[0].number if taken else self._number, is_last)
            self._made = await asyncio.to_thread(_encoded, header, taken, self._now)
        made = self._made
        try:
            await self._blobs.create(made.path, made.data)
        except ObjectNotWritten as error:
            self._log.warning("event_log.not_written", path=made.path, cause=str(error))
            return False
        except FileExistsError:
            # Nobody else writes there; what lies there stays, and a replay will miss these records.
            self._log.error("event_log.taken", path=made.path)
            self.dropped += made.records
        self._made = None
        self._segment += 1
        for _ in range(made.records):
            one = self._waiting.popleft()
            self._commands -= len(one.commands) if isinstance(one, _Noted) else 0
        self._is_ended = made.is_last and not self._waiting
        return True

    def _header(self, first: int, is_last: bool) -> LogHeader:
        return LogHeader(
            term=self._term,
            opened_at=self._opened_at,
            segment=self._segment,
            first=first,
            pool=self._pool,
            checking=self._checking,
            code=self._code,
            dropped=self.dropped,
            refused=tuple(sorted((reason.value, n) for reason, n in self.refused.items())),
            is_last=is_last,
        )

    def _next(self) -> list[_Noted | LogGap]:
        """What the next segment holds. A gap at the end may still grow and waits for its end."""
        taken: list[_Noted | LogGap] = []
        commands = 0
        for one in self._waiting:
            if len(taken) >= SEGMENT_RECORDS_MAX or commands >= SEGMENT_COMMANDS_MAX:
                return taken
            taken.append(one)
            commands += len(one.commands) if isinstance(one, _Noted) else 0
        return taken[:-1] if taken and isinstance(taken[-1], LogGap) else taken


def _encoded(header: LogHeader, taken: Sequence[_Noted | LogGap], now: float) -> _Made:
    first_s = next((one.now for one in taken if isinstance(one, _Noted)), now)
    times = (int(header.opened_at * 1000), int(first_s * 1000))
    path = event_log_path(header.term, times[0], header.segment, times[1])
    data = encode_segment(header, [_entry(one) for one in taken])
    return _Made(path, data, len(taken), header.is_last)


def _entry(one: _Noted | LogGap) -> LogEntry:
    if isinstance(one, LogGap):
        return one
    return LogRecord(
        number=one.number,
        now=one.now,
        event=one.event,
        kinds=kinds_of(one.commands),
        sha=sha_of(one.commands),
        quarantined=one.quarantined,
    )
