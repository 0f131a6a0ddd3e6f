"""A loopback server that answers as it is told: for tests of what stands on top of the API.

    with scripted_api({"GET /v1/jobs/job_1": [job_json(state="running"), job_json()]}) as api:
        client = Client(api.address, "vrl_test")

Each route gives its answers in order and then repeats the last one. What no route matches is 404.
"""

import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = Mapping[str, Any] | str
"""JSON, or the text of an event stream."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no trouble of the server; others are shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; a plain body is a 200."""

    body: Body
    status: int = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it arrived; the path has its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class ScriptedApi:
    """What is still to be answered, and what was asked."""

    routes: dict[str, list[Body | Answer]]
    address: str = ""
    asked: list[Asked] = field(default_factory=list)

    def answer(self, asked: Asked) -> Answer:
        """The next answer of a route, by method and path without the query."""
        self.asked.append(asked)
        route = f"{asked.method} {asked.path.partition('?')[0]}"
        left = self.routes.get(route)
        if left is None:
            return Answer({"status": 404, "code": "not_found", "detail": f"no {route}"}, 404)
        answer = left.pop(0) if len(left) > 1 else left[0]
        return answer if isinstance(answer, Answer) else Answer(answer)


@contextmanager
def scripted_api(routes: Mapping[str, Sequence[Body | Answer]]) -> Iterator[ScriptedApi]:
    """The server on a free port of the loopback."""
    api = ScriptedApi({route: list(answers) for route, answers in routes.items()})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, self.rfile.read(length))
            self.give(api.answer(asked))

        def give(self, answer: Answer) -> None:
            is_text = isinstance(answer.body, str)
            body = (str(answer.body) if is_text else json.dumps(answer.body)).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", "text/event-stream" if is_text else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = handle_any

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    api.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def page(*items: Mapping[str, Any]) -> Mapping[str, Any]:
    """The only page of a list."""
    return {"data": list(items), "has_more": False, "next": None}


def job_json(state: str = "succeeded", **fields: Any) -> dict[str, Any]:
    """A job as the API shows it."""
    return {
        "id": "job_1",
        "project_id": "prj_1",
        "name": "calc",
        "state": state,
        "desired": "run",
        "attempt_id": "att_1",
        "attempt": 1,
        "generation": 1,
        "observed_generation": 1,
        "spec": {"seed": 3},
        "labels": {},
        "created_at": "2026-11-29T12:00:00Z",
        "started_at": "2026-11-29T12:00:01Z",
        "ended_at": "2026-11-29T12:01:41Z" if state == "succeeded" else None,
        **fields,
    }


def point(step: int, value: float, attempt_id: str = "att_1") -> dict[str, Any]:
    """One point of the mean reward."""
    return {"attempt_id": attempt_id, "step": step, "name": "reward_mean", "value": value}


def evaluation(step: int, score: float | None, **fields: Any) -> dict[str, Any]:
    """A finished evaluation."""
    return {
        "attempt_id": "att_1",
        "step": step,
        "tasks": 256,
        "scored": 256,
        "unscorable": 0,
        "score": score,
        "seconds": 5.0,
        **fields,
    }
