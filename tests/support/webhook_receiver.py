"""A receiver of webhooks on a real socket whose answers a test scripts."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Got:
    """One request that arrived."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def id(self) -> str:
        """What a receiver tells duplicates by."""
        return self.headers["webhook-id"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver says."""

    status: int = 200
    body: bytes = b"thanks"
    location: str | None = None


Script = Callable[[Got, int], Answer]
"""Answers a request; the number counts requests from 0."""


class Receiver:
    """What arrived, and where to send."""

    def __init__(self, script: Script) -> None:
        self.got: list[Got] = []
        self.keeps_bodies = True
        self._script = script
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                names = {name.lower(): value for name, value in self.headers.items()}
                answer = receiver._take(Got(self.path, names, body))
                self.send_response(answer.status)
                if answer.location is not None:
                    self.send_header("Location", answer.location)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def do_GET(self) -> None:
                raise AssertionError("a webhook is never fetched")

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            """Senders connect many at once; a full queue refuses some, and their tries come late."""

        self.http = Server(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True

    @property
    def url(self) -> str:
        """Where to send."""
        return f"http://127.0.0.1:{self.http.server_address[1]}/hook"

    @property
    def ids(self) -> list[str]:
        """Ids in the order of arrival."""
        with self._lock:
            return [one.id for one in self.got]

    def _take(self, got: Got) -> Answer:
        with self._lock:
            number = len(self.got)
            self.got.append(got if self.keeps_bodies else Got("", {"webhook-id": got.id}, b""))
        return self._script(got, number)


def thanks(got: Got, number: int) -> Answer:
    """Every message is welcome."""
    del got, number
    return Answer()


@contextmanager
def receiving(script: Script = thanks) -> Iterator[Receiver]:
    """A receiver for the length of a block."""
    receiver = Receiver(script)
    thread = threading.Thread(target=receiver.http.serve_forever, name="webhook receiver")
    thread.start()
    try:
        yield receiver
    finally:
        receiver.http.shutdown()
        receiver.http.server_close()
        thread.join(10.0)
