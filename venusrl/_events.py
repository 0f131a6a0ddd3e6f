"""Server-sent events: reading the stream, and following it over broken connections."""

import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
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
    """Events of a `text/event-stream`."""
    reader = EventReader()
    for line in lines:
        event = reader.take(line)
        if event is not None:
            yield event


@dataclass(slots=True)
class EventReader:
    """Lines in, events out; comments keep the connection alive and are skipped."""

    _current: ServerSentEvent = field(default_factory=ServerSentEvent)

    def take(self, line: str) -> ServerSentEvent | None:
        """The event that this line ends, if it ends one."""
        if line == "":
            ended, self._current = self._current, ServerSentEvent()
            return ended if ended.data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._current.data.append(value)
        elif name == "event":
            self._current.event = value
        elif name == "id":
            self._current.id = value
        return None


@dataclass(slots=True)
class Follower:
    """Yields every event of a job above `after` exactly once, in order."""

    transport: Transport
    path: str
    after: int = 0
    types: str | None = None
    _is_over: bool = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Ends when the job has ended; until then reconnects from the last event seen."""
        failures = 0
        while True:
            before, cause = self.after, "the stream ended early"
            try:
                async with aclosing(self._once()) as events:
                    async for event in events:
                        yield event
            except (httpx.TransportError, ServerError) as error:
                cause = repr(error)
            if self._is_over:
                return
            failures = 0 if self.after > before else failures + 1
            if failures >= self.transport.patience.tries:
                raise ConnectionFailed(f"{self.transport.base_url}: {cause}")
            await self.transport.pause(failures)

    async def _once(self) -> AsyncGenerator[Event, None]:
        """Events of one connection; notes when the server says that no more will come."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(self.after)}
        request = Request("GET", self.path, {"types": self.types}, headers=headers)
        reader = EventReader()
        async with self.transport.stream(request, SILENCE_S) as response:
            async for line in self.transport.lines(response):
                raw = reader.take(line)
                if raw is None:
                    continue
                if raw.event == END:
                    self._is_over = True
                    return
                event = Event.model_validate(raw.json())
                if event.id > self.after:
                    self.after = event.id
                    yield event
