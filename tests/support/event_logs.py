"""Event logs for tests: worlds that record their leaders' steps, and the segments of a store."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from domain.event_log import LogSegment
from domain.events import Event
from infra.event_log import decode_segment, encode_segment
from scheduler.core.coordinator import Coordinator
from scheduler.event_log import EventLog
from stores.blobs import Blobs
from tests.simulation.driver import World


@dataclass(slots=True)
class RecordedWorld(World):
    """A world whose leaders write event logs, a term each."""

    blobs: Blobs | None = None
    logs: list[EventLog] = field(default_factory=list)

    def deliver(self, event: Event) -> None:
        """As the shell does: refused events are not recorded."""
        if self.leader is None or self.leader.accept(event) is not None:
            return
        commands = self.leader.step(self.now, event)
        self._log_of(self.leader).note(self.now, event, commands)
        for command in commands:
            self.log.append((self.now, command))
            self._execute(command)

    def write(self) -> None:
        """Store what was recorded."""
        for log in self.logs:
            asyncio.run(log.close())

    def _log_of(self, leader: Coordinator) -> EventLog:
        if not self.logs or self.logs[-1].refused is not leader.refusals:
            assert self.blobs is not None
            term = len(self.logs) + 1
            self.logs.append(EventLog(self.blobs, term, self.pool, True, refused=leader.refusals))
        return self.logs[-1]


def files_of(store: Path) -> list[Path]:
    """Segments below a folder, in order."""
    return sorted(store.rglob("*.segment"))


def segments_of(store: Path) -> list[LogSegment]:
    """The same, read."""
    return [decode_segment(path.read_bytes()) for path in files_of(store)]


def rewrite(path: Path, segment: LogSegment) -> None:
    """Put another segment in its place, as somebody who tampers would."""
    path.write_bytes(encode_segment(segment.header, segment.entries))
