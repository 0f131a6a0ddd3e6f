"""Records of the event log: what the leader decided on, and a hash of what it decided.

The log serves replay and diagnosis; it is never the truth. One log is one term's: it opens with
`StateRestored`, numbers its records from 0, and says where records are missing.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from domain.commands import Command
from domain.events import Event
from domain.ids import JobId
from domain.plan import Pool


@dataclass(frozen=True, slots=True)
class LogHeader:
    """What a segment belongs to, and the settings that the core was made with."""

    term: int
    opened_at: float
    """Wall-clock seconds; a database that was put back may lead a term number twice."""
    segment: int
    """Its place in the log, from 0."""
    first: int
    """Number of its first record."""
    pool: Pool
    checking: bool
    code: str
    """Identity of the sources that decided."""
    dropped: int
    """Records that the log lacks so far, because they came faster than the store took them."""
    refused: tuple[tuple[str, int], ...]
    """Events that `accept` refused so far, by reason; they change nothing and are not recorded."""
    is_last: bool = False
    """The leader stepped down in order and nothing follows; one that was killed never says it."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One accepted event with the commands that its step gave, as their kinds and one hash."""

    number: int
    now: float
    event: Event
    kinds: tuple[str, ...]
    sha: str
    quarantined: JobId | None = None
    """The job that was set aside because the step raised; the commands then hold its end."""


@dataclass(frozen=True, slots=True)
class LogGap:
    """Records [number, number + count) were dropped."""

    number: int
    count: int


LogEntry = LogRecord | LogGap


@dataclass(frozen=True, slots=True)
class LogSegment:
    """One stored piece of a log."""

    header: LogHeader
    entries: tuple[LogEntry, ...]


def kinds_of(commands: Sequence[Command]) -> tuple[str, ...]:
    """Names of the commands' classes, in order."""
    return tuple(type(command).__name__ for command in commands)


def sha_of(commands: Sequence[Command]) -> str:
    """Hash of what a step gave. Records are frozen and hold no set, so their text is their identity."""
    return hashlib.sha256(repr(tuple(commands)).encode()).hexdigest()[:32]
