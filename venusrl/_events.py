"""Server-sent events: reading the stream, and following it over broken connections."""

import json
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from venusrl._errors import ConnectionFailed, ServerError
from venusrl._transport import Request, Transport
from venusrl.models.jobs import Event

SILENCE_S: Final = 60.0
"""The server sends a heartbeat every 15 s; four missed ones mean a dead connection."""

END: Final = "end"
"""The server's last word on an ended job; it is no event of the job and has no id."""


@dataclass(slots=True)
class ServerSentEvent:
    """One dispatched event of a stream."""

    id: str = ""
    event: str = ""
    data: list[str] = field(default_factory=list)

    def json(self) -> Any:
        """The data as JSON."""
        return json.loads("\n".join(self.data))


def parse_events(lines: Iterable[str]) -> Iterator[ServerSentEvent]:
    """Events of a `text/event-stream`; comments keep the connection alive and are skipped."""
    current = ServerSentEvent()
    for line in lines:
        if line == "":
            if current.data:
                yield current
            current = ServerSentEvent()
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            current.data.append(value)
        elif name == "event":
            current.event = value
        elif name == "id":
            current.id = value


@dataclass(slots=True)
class Follower:
    """Yields every event of a job above `after` exactly once, in order."""

    transport: Transport
    path: str
    after: int = 0
    types: str | None = None

    def events(self) -> Iterator[Event]:
        """Ends when the job has ended; until then reconnects from the last event seen."""
        failures = 0
        while True:
            before, cause = self.after, "the stream ended early"
            try:
                is_over = yield from self._once()
            except (httpx.TransportError, ServerError) as error:
                is_over, cause = False, repr(error)
            if is_over:
                return
            failures = 0 if self.after > before else failures + 1
            if failures >= self.transport.patience.tries:
                raise ConnectionFailed(f"{self.transport.base_url}: {cause}")
            self.transport.patience.pause(failures)

    def _once(self) -> Generator[Event, None, bool]:
        """Events of one connection; returns whether the server said that no more will come."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(self.after)}
        request = Request("GET", self.path, {"types": self.types}, headers=headers)
        with self.transport.stream(request, SILENCE_S) as response:
            for raw in parse_events(response.iter_lines()):
                if raw.event == END:
                    return True
                event = Event.model_validate(raw.json())
                if event.id > self.after:
                    self.after = event.id
                    yield event
        return False
