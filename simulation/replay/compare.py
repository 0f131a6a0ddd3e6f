"""Runs a recorded log through a fresh coordinator and compares what it decides, step by step.

A decision that cannot be reproduced from the log is a defect of the core: it read something that is
no argument of `step`. Records compare by hash, so that a difference is found at the first step.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from domain.commands import Command
from domain.event_log import LogEntry, LogGap, LogHeader, LogRecord, LogSegment, kinds_of, sha_of
from scheduler.core.coordinator import Coordinator


@dataclass(frozen=True, slots=True)
class Log:
    """The segments of one term's log, in order, none of another."""

    header: LogHeader
    segments: tuple[LogSegment, ...]

    @property
    def is_closed(self) -> bool:
        """Whether the last segment says that it is the last: else one more may be missing."""
        return self.segments[-1].header.is_last

    def entries(self) -> Iterator[LogEntry]:
        """All records and gaps in order."""
        for segment in self.segments:
            yield from segment.entries


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step that gave something else than what was recorded."""

    record: LogRecord
    got: tuple[Command, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Records from `number` on are not there; what follows cannot be checked."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far the log was reproduced. `sha` covers the commands of all compared records."""

    events: int
    commands: int
    sha: str
    ended: Difference | Missing | None = None
    """None: the whole log is identical."""


def logs_of(segments: Iterable[LogSegment]) -> list[Log]:
    """Segments by log, oldest first; a term number may lead twice where a database was put back."""

    def log(segment: LogSegment) -> tuple[int, float]:
        return segment.header.term, segment.header.opened_at

    ordered = sorted(segments, key=lambda one: (*log(one), one.header.segment))
    parts = [tuple(group) for _, group in groupby(ordered, key=log)]
    return [Log(part[0].header, part) for part in parts]


def replay(log: Log) -> Outcome:
    """Compare every record up to the first difference or the first missing one."""
    core = Coordinator(log.header.pool, checking=log.header.checking)
    digest = hashlib.sha256()
    events = commands = 0
    ended: Difference | Missing | None = None
    for entry in log.entries():
        ended = _absent(entry, events) or _differs(core, entry)
        if ended is not None:
            break
        assert isinstance(entry, LogRecord)
        events, commands = events + 1, commands + len(entry.kinds)
        digest.update(bytes.fromhex(entry.sha))
    return Outcome(events, commands, digest.hexdigest()[:32], ended)


def _absent(entry: LogEntry, expected: int) -> Missing | None:
    if isinstance(entry, LogGap):
        return Missing(
            entry.number, f"{entry.count} records were dropped while the log was written"
        )
    if entry.number < expected:
        return Missing(expected, f"record {entry.number} comes again: two segments differ in it")
    if entry.number > expected:
        return Missing(expected, f"the next record there is {entry.number}: a segment is missing")
    return None


def _differs(core: Coordinator, entry: LogEntry) -> Difference | None:
    assert isinstance(entry, LogRecord)
    refusal = core.accept(entry.event)
    if refusal is not None:
        return Difference(entry, (), f"the event is refused: {refusal.reason.value}")
    try:
        got = tuple(core.step(entry.now, entry.event))
    except AssertionError as error:
        if entry.quarantined is None:
            return Difference(entry, (), f"the step raised: {error!r}")
        got = tuple(core.quarantine(entry.quarantined))
    else:
        if entry.quarantined is not None:
            return Difference(entry, got, f"the recorded step raised for job {entry.quarantined}")
    if sha_of(got) == entry.sha:
        return None
    same = kinds_of(got) == entry.kinds
    return Difference(entry, got, "other contents" if same else "other commands")
