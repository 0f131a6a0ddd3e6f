"""Reading a stream of events, and following it over broken connections."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.unit.venusrl.client.playing import Answer, Script, answers, job, problem
from venusrl._events import parse_events
from venusrl.client import ConnectionFailed, JobFailed, NotFound


def test_events_end_at_blank_lines_and_comments_are_skipped() -> None:
    lines = [
        ": alive",
        "retry: 1000",
        "",
        "id: 1",
        "event: a",
        "data: {",
        "data: }",
        "",
        "data:2",
        "",
    ]
    first, second = parse_events(lines)
    assert (first.id, first.event, first.json()) == ("1", "a", {})
    assert (second.id, second.event, second.json()) == ("", "", 2)


def test_an_event_cut_off_by_the_end_of_the_stream_is_not_dispatched() -> None:
    assert list(parse_events(["id: 1", "data: {}"])) == []


def frame(id: int) -> str:
    """One event as the API writes it."""
    body = {"id": id, "type": "t", "body": {}, "created_at": "2026-01-01T00:00:00Z"}
    return f"id: {id}\nevent: t\ndata: {json.dumps(body)}\n\n"


class Broken(httpx.SyncByteStream):
    """A stream that breaks after its content."""

    def __init__(self, text: str) -> None:
        """Keep the text."""
        self._text = text

    def __iter__(self) -> Iterator[bytes]:
        yield self._text.encode()
        raise httpx.ReadError("connection lost")


def streamed(*ids: int, end: bool = False) -> Callable[[httpx.Request], httpx.Response]:
    """These events, then a clean end of the job or a broken connection."""
    text = "".join(frame(id) for id in ids)
    if end:
        text += "event: end\ndata: {}\n\n"
        return lambda _: httpx.Response(200, content=text.encode())
    return lambda _: httpx.Response(200, stream=Broken(text))


DONE = answers(job(state="succeeded"))


def test_following_reconnects_after_the_last_event_and_repeats_none() -> None:
    script = Script([streamed(1, 2), streamed(2, 3), streamed(4, end=True), *DONE])
    assert [one.id for one in script.client().jobs.follow("job_1")] == [1, 2, 3, 4]
    seen = [request.headers.get("Last-Event-ID") for request in script.requests[:3]]
    assert seen == ["0", "2", "3"]


def test_following_outlives_an_api_that_is_away_for_a_while() -> None:
    away: list[Answer] = [
        httpx.ConnectError("refused"),
        problem(503, "unavailable"),
        problem(500, "internal"),
    ]
    script = Script([streamed(1), *away, streamed(2, end=True), *DONE])
    assert [one.id for one in script.client().jobs.follow("job_1")] == [1, 2]


def test_following_gives_up_when_nothing_comes_any_more() -> None:
    script = Script([streamed(1), httpx.ConnectError("refused")])
    followed = script.client(tries=3).jobs.follow("job_1")
    assert next(followed).id == 1
    with pytest.raises(ConnectionFailed):
        next(followed)


def test_progress_renews_the_patience() -> None:
    parts = [streamed(id) for id in range(1, 8)]
    script = Script([*parts, streamed(8, end=True), *DONE])
    assert len(list(script.client(tries=2).jobs.follow("job_1"))) == 8


def test_following_a_failed_job_ends_in_its_cause() -> None:
    failed = job(state="failed", failure={"code": "diverged", "component": "trainer"})
    script = Script([streamed(1, end=True), *answers(failed)])
    followed = script.client().jobs.follow("job_1")
    assert next(followed).id == 1
    with pytest.raises(JobFailed, match="diverged"):
        next(followed)


def test_following_an_unknown_job_is_refused_at_once() -> None:
    script = Script([problem(404, "not_found")])
    with pytest.raises(NotFound):
        next(script.client().jobs.follow("job_x"))
    assert len(script.requests) == 1


def test_types_are_asked_for() -> None:
    script = Script([streamed(end=True), *DONE])
    assert list(script.client().jobs.follow("job_1", types=["a", "b"])) == []
    assert script.requests[0].url.params["types"] == "a,b"
