"""A guest that says anything: the host's parser answers, refuses or ends the link, and counts.

Streams are made of whole frames that agents say, in order and out of it, of such frames damaged, and of
noise, cut into reads anywhere. Each request ends exactly once, nothing escapes but the named errors,
and the parser never holds more than one frame, one read, and what was asked for.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxes.commands import WINDOW_BYTES, Command, ProcessEnd
from sandboxes.files import (
    Entry,
    Listing,
    ListRequest,
    MakeFolderRequest,
    MoveRequest,
    RemoveRequest,
    StatRequest,
)
from sandboxes.runtimes.guest_answers import AnswerChannel
from sandboxes.runtimes.guest_control import AskStats
from sandboxes.runtimes.guest_jobs import CollectedJob, ProcessJob
from sandboxes.runtimes.guest_link import GuestLink
from sandboxes.runtimes.guest_wire import GUEST_FRAME_BYTES_MAX, GuestProtocolError, pack, unpack
from venusrl.env.sandbox import (
    ExecRequest,
    ExecResult,
    PythonRequest,
    ReadRequest,
    SandboxError,
    WriteRequest,
)

CAP = 1000
Request = (
    ExecRequest
    | PythonRequest
    | Command
    | ReadRequest
    | WriteRequest
    | StatRequest
    | ListRequest
    | MakeFolderRequest
    | MoveRequest
    | RemoveRequest
    | AskStats
)
REQUESTS: tuple[Request, ...] = (
    ExecRequest(("a",), b"input"),
    PythonRequest("x"),
    Command(("a",)),
    ReadRequest("a"),
    WriteRequest("a", b""),
    StatRequest("a"),
    ListRequest("a", 2),
    MakeFolderRequest("a"),
    MoveRequest("a", "b"),
    RemoveRequest("a"),
    AskStats(),
)
HELLO = pack([b"hello", b"2", b"3.11.2"])
SEEN: Counter[str] = Counter()
"""What became of the requests of all examples: each way must have been taken."""

Frame = list[bytes]
"""Without its channel."""

number = st.one_of(
    st.integers(-3, 300).map(lambda value: b"%d" % value),
    st.sampled_from(
        [b"", b"-0", b" 7 ", b"1_0", b"0x1", b"9" * 19, b"9" * 21, b"\xd9\xa1", b"NaN"]
    ),
)
content = st.one_of(st.binary(max_size=40), st.integers(CAP - 2, CAP + 300).map(bytes))
reason = st.sampled_from([b"not_found", b"denied", b"too_large", b"lost"])


def frame(*parts: bytes | st.SearchStrategy[bytes]) -> st.SearchStrategy[Frame]:
    """A frame of these parts."""
    made = [st.just(part) if isinstance(part, bytes) else part for part in parts]
    return st.tuples(*made).map(list)


error = frame(b"error", reason, content)
chunk = frame(st.sampled_from([b"out", b"err"]), st.binary(min_size=1, max_size=40))
entry = frame(b"entry", st.sampled_from([b"a", b"b/", b"\xff"]), b"file", b"3", b"420", number)
any_frame: st.SearchStrategy[Frame] = st.one_of(
    error,
    chunk,
    entry,
    frame(st.sampled_from([b"out", b"err"]), content),
    frame(b"started", number),
    frame(b"took", number),
    frame(b"end", number, number, number, number),
    frame(b"bytes", content),
    frame(b"ok"),
    frame(b"ok", number),
    st.lists(content, min_size=1, max_size=9),
)


@st.composite
def plausible(draw: st.DrawFn, request: Request) -> list[Frame]:
    """What an agent would say to this request, to its end."""
    if draw(st.integers(0, 9)) == 0:
        return [draw(error)]
    match request:
        case ExecRequest() | PythonRequest() | Command():
            said = [[b"started", b"7"], *draw(st.lists(chunk, max_size=4))]
            if isinstance(request, ExecRequest) and draw(st.booleans()):
                said.append([b"took", b"5"])
            return [*said, [b"end", draw(st.sampled_from([b"0", b"3"])), b"0", b"0", b"0"]]
        case ReadRequest() | AskStats():
            return [[b"bytes", draw(content)]]
        case StatRequest() | ListRequest():
            wanted = 1 if isinstance(request, StatRequest) else draw(st.integers(0, 2))
            return [[b"entry", b"a", b"file", b"3", b"420", b"0"]] * wanted + [[b"ok", b"1"]]
        case MakeFolderRequest():
            return [[b"ok", b"1"]]
        case _:
            return [[b"ok"]]


@st.composite
def damaged(draw: st.DrawFn, channel: int, said: Frame) -> bytes:
    """A frame, sometimes with one byte changed, cut off, or told to be of another size."""
    whole = bytearray(pack([said[0], b"%d" % channel, *said[1:]]))
    match draw(st.integers(0, 39)):
        case 0:
            whole[draw(st.integers(0, len(whole) - 1))] = draw(st.integers(0, 255))
        case 1:
            del whole[draw(st.integers(0, len(whole))) :]
        case 2:
            whole[:4] = draw(st.integers(0, 1 << 32)).to_bytes(5, "big")[-4:]
        case 3:
            return draw(st.binary(max_size=30))
        case _:
            pass
    return bytes(whole)


class Wire(asyncio.Transport):
    """Takes what the host says and forgets it."""

    def write(self, data: Any) -> None:
        """Nobody reads it."""

    def abort(self) -> None:
        """The test sees that from the link's cause."""


def pieces(stream: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    """The stream in reads of these sizes, the rest in one."""
    at = 0
    for size in sizes:
        yield stream[at : at + size]
        at += size
    yield stream[at:]


def outcome(answer: "asyncio.Future[Any]", cause: list[str]) -> str:
    """How one request ended."""
    if not answer.done():
        assert cause == []
        return "waits"
    error = answer.exception()
    if error is None:
        return "answered"
    assert isinstance(error, SandboxError)
    return "lost" if error.reason == "lost" else "refused"


async def follow(process: Any, taken: list[int]) -> ProcessEnd:
    """Read a program to its end."""
    running = await process
    while (one := await running.read()) is not None:
        taken.append(len(one.content))
    end: ProcessEnd = await running.wait()
    return end


def send(link: GuestLink, request: Request) -> "asyncio.Future[Any]":
    """The way in which such a request goes."""
    if isinstance(request, ExecRequest | PythonRequest):
        return link.call(request)
    if isinstance(request, Command):
        return asyncio.ensure_future(follow(link.start(request), []))
    return link.ask(request)


async def converse(requests: list[Request], stream: bytes, sizes: list[int]) -> None:
    """One guest's whole life."""
    causes: list[str] = []
    link = GuestLink(CAP, causes.append)
    link.connection_made(Wire())
    link.data_received(HELLO)
    answers = [send(link, request) for request in requests]
    for piece in pieces(stream, sizes):
        link.data_received(piece)
        held = len(link._buffer)
        assert held <= max(GUEST_FRAME_BYTES_MAX + 4, len(piece))
        assert held == 0 or not causes
    for _ in range(4):
        await asyncio.sleep(0)
    SEEN.update(outcome(answer, causes) for answer in answers)
    if causes:
        assert causes[0].startswith("its guest agent broke the protocol: ")
        assert len(causes) == 1
        SEEN["ended"] += 1
        with pytest.raises(SandboxError, match="lost"):
            await link.call(ReadRequest("later"))
    link.fail("the test is over")
    for result in await asyncio.gather(*answers, return_exceptions=True):
        assert not isinstance(result, BaseException) or isinstance(result, SandboxError)
        if isinstance(result, ExecResult):
            assert result.exit_code in range(193)
            assert max(len(result.stdout), len(result.stderr)) <= CAP + 256
            assert result.truncated_bytes >= 0


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[Request], bytes]:
    """Requests, and what a guest says: of each in order, all mixed, some of it nonsense."""
    calls = [one for one in REQUESTS if isinstance(one, ExecRequest | PythonRequest)]
    others = [one for one in REQUESTS if one not in calls]
    requests: list[Request] = [*draw(st.lists(st.sampled_from(calls), max_size=1))]
    requests += draw(st.lists(st.sampled_from(others), max_size=4))
    told = [draw(plausible(request)) for request in requests]
    order = draw(st.permutations([at for at, one in enumerate(told) for _ in one]))
    said = [(at + 1, told[at].pop(0)) for at in order]
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(said)))
        said.insert(place, (draw(st.integers(0, len(requests) + 1)), draw(any_frame)))
    if said and draw(st.integers(0, 7)) == 0:
        said.append(draw(st.sampled_from(said)))  # after its end
    if len(said) > 1 and draw(st.integers(0, 7)) == 0:
        said = draw(st.permutations(said))  # in no order
    kept = draw(st.integers(0, len(said)))
    return requests, b"".join(draw(damaged(*one)) for one in said[:kept])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives(), st.lists(st.integers(0, 20), max_size=8))
def _any_stream(life: tuple[list[Request], bytes], sizes: list[int]) -> None:
    asyncio.run(converse(*life, sizes))


def test_any_stream_of_a_guest_ends_in_answers_refusals_or_the_end_of_its_link() -> None:
    SEEN.clear()
    _any_stream()
    print(f"guest streams: {dict(sorted(SEEN.items()))}")
    assert SEEN.keys() == {"answered", "refused", "lost", "waits", "ended"}


async def take(request: Request, said: list[Frame]) -> str:
    """What one channel makes of these frames."""
    loop = asyncio.get_running_loop()
    about: AnswerChannel | CollectedJob | ProcessJob
    if isinstance(request, ExecRequest | PythonRequest):
        about = CollectedJob(request, CAP, loop)
    elif isinstance(request, Command):
        about = ProcessJob(request, loop)
    else:
        about = AnswerChannel(request, loop)
    has_ended = False
    for one in said:
        try:
            has_ended = about.take(unpack(pack(one)[4:]))
        except GuestProtocolError:
            return "broken"
        if isinstance(about, ProcessJob):
            assert sum(map(len, about._unread.values())) <= WINDOW_BYTES + 256
        if has_ended:
            break
    if not has_ended:
        return "waits"
    if isinstance(refused := about.answer.exception(), SandboxError):
        return "refused" if len(refused.detail) <= 200 else "a long detail"
    return type(about.answer.result()).__name__


@st.composite
def answers(draw: st.DrawFn) -> tuple[Request, list[Frame]]:
    """A request with an answer, or with any frames."""
    request = draw(st.sampled_from(REQUESTS))
    if draw(st.booleans()):
        said = draw(plausible(request))
        return request, said[: draw(st.integers(1, len(said)))]
    return request, draw(st.lists(any_frame, min_size=1, max_size=4))


@settings(max_examples=500, deadline=None)
@given(answers())
def _any_answer(case: tuple[Request, list[Frame]]) -> None:
    SEEN[asyncio.run(take(*case))] += 1


def test_any_fields_are_an_answer_of_the_right_kind_or_a_named_error() -> None:
    SEEN.clear()
    _any_answer()
    print(f"guest answers: {dict(sorted(SEEN.items()))}")
    results = {one.__name__ for one in (ExecResult, ProcessJob, Entry, Listing, bytes, bool)}
    assert SEEN.keys() == {"broken", "waits", "refused", "NoneType", *results}
