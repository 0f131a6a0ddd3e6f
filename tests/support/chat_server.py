"""An OpenAI-compatible server on a real socket whose answers a test scripts."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Completion = (
    tuple[int, Mapping[str, Any] | str | bytes]
    | tuple[int, Mapping[str, Any] | str | bytes, Mapping[str, str]]
)
"""Status, body and, if need be, headers."""

Script = Callable[[Mapping[str, Any], int], Completion]
"""Answers a request's body; the number counts requests from 0."""


class ChatServer:
    """What was asked, and where to ask."""

    def __init__(self, script: Script) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self._script = script
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                key = self.headers.get("Authorization")
                status, answer, *more = server._take(self.path, key, body)
                text = answer if isinstance(answer, (str, bytes)) else json.dumps(answer)
                data = text.encode() if isinstance(text, str) else text
                self.send_response(status)
                for name, value in (more[0] if more else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                try:
                    self.wfile.write(data)
                except ConnectionError:
                    pass  # Whoever asked had enough.

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Up to /v1."""
        return f"http://127.0.0.1:{self.http.server_address[1]}/v1"

    def _take(self, path: str, key: str | None, body: dict[str, Any]) -> Completion:
        if path != "/v1/chat/completions":
            return 404, "no such path"
        with self._lock:
            number = len(self.asked)
            self.asked.append(body)
            self.keys.append(key)
        return self._script(body, number)


@contextmanager
def chat_server(script: Script) -> Iterator[ChatServer]:
    """A server for one test."""
    server = ChatServer(script)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()


def completion(
    content: str = "", *calls: tuple[str, str], finish: str = "stop", tokens: int | None = 5
) -> Completion:
    """A 200 with one choice; calls are name and arguments."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": text}}
            for n, (name, text) in enumerate(calls)
        ]
    body: dict[str, Any] = {"choices": [{"message": message, "finish_reason": finish}]}
    if tokens is not None:
        body["usage"] = {"prompt_tokens": 10, "completion_tokens": tokens}
    return 200, body
