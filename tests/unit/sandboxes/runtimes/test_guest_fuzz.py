"""A guest that says anything: the host's parser answers, refuses or ends the link, and counts.

Streams are made of whole frames that agents say, of such frames damaged, and of noise, cut into reads
anywhere. Each request ends exactly once, nothing escapes but the named errors, and the parser never
holds more than one frame and one read.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxes.runtimes.guest_link import (
    GUEST_FRAME_BYTES_MAX,
    GuestLink,
    GuestProtocolError,
    decode_answer,
    pack,
    unpack,
)
from venusrl.env.sandbox import (
    ExecRequest,
    ExecResult,
    PythonRequest,
    ReadRequest,
    SandboxError,
    SandboxRequest,
    WriteRequest,
)

CAP = 1000
REQUESTS: tuple[SandboxRequest, ...] = (
    ExecRequest(("a",)),
    PythonRequest("x"),
    ReadRequest("a"),
    WriteRequest("a", b""),
)
HELLO = pack([b"hello", b"1", b"3.11.2"])
SEEN: Counter[str] = Counter()
"""What became of the requests of all examples: each way must have been taken."""

number = st.one_of(
    st.integers(-3, 300).map(lambda value: b"%d" % value),
    st.sampled_from(
        [b"", b"-0", b" 7 ", b"1_0", b"0x1", b"9" * 19, b"9" * 21, b"\xd9\xa1", b"NaN"]
    ),
)
content = st.one_of(st.binary(max_size=40), st.integers(CAP - 2, CAP + 300).map(bytes))
reason = st.sampled_from([b"not_found", b"denied", b"too_large", b"lost"])
error = st.tuples(st.just(b"error"), reason, content).map(list)
done = st.tuples(st.just(b"done"), number, number, number, content, content).map(list)
fields: st.SearchStrategy[list[bytes]] = st.one_of(
    done,
    st.tuples(st.just(b"bytes"), content).map(list),
    st.just([b"ok"]),
    error,
    st.lists(content, max_size=10),
)


def plausible(request: SandboxRequest) -> st.SearchStrategy[list[bytes]]:
    """Mostly what an agent would say to this request."""
    match request:
        case ExecRequest() | PythonRequest():
            zero = st.just(b"0")
            fine = st.tuples(st.just(b"done"), zero, zero, zero, content, content)
            return st.one_of(fine.map(list), done, fields)
        case ReadRequest():
            return st.one_of(st.tuples(st.just(b"bytes"), content).map(list), error, fields)
        case WriteRequest():
            return st.one_of(st.just([b"ok"]), error, fields)


@st.composite
def damaged(draw: st.DrawFn, request: SandboxRequest) -> bytes:
    """A frame, sometimes with one byte changed, cut off, or told to be of another size."""
    frame = bytearray(pack(draw(plausible(request))))
    match draw(st.integers(0, 19)):
        case 0:
            frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
        case 1:
            del frame[draw(st.integers(0, len(frame))) :]
        case 2:
            frame[:4] = draw(st.integers(0, 1 << 32)).to_bytes(5, "big")[-4:]
        case 3:
            return draw(st.binary(max_size=30))
        case _:
            pass
    return bytes(frame)


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


async def converse(requests: list[SandboxRequest], stream: bytes, sizes: list[int]) -> None:
    """One guest's whole life."""
    causes: list[str] = []
    link = GuestLink(CAP, causes.append)
    link.connection_made(Wire())
    link.data_received(HELLO)
    answers = [link.call(request) for request in requests]
    for piece in pieces(stream, sizes):
        link.data_received(piece)
        held = len(link._buffer)
        assert held <= max(GUEST_FRAME_BYTES_MAX + 4, len(piece))
        assert held == 0 or not causes
    SEEN.update(outcome(answer, causes) for answer in answers)
    if causes:
        assert causes[0].startswith("its guest agent broke the protocol: ")
        assert len(causes) == 1
        SEEN["ended"] += 1
        with pytest.raises(SandboxError, match="lost"):
            await link.call(ReadRequest("later"))
    link.fail("the test is over")
    assert all(answer.done() for answer in answers)
    for result in (answer.result() for answer in answers if answer.exception() is None):
        if isinstance(result, ExecResult):
            assert result.exit_code in range(-1, 256)
            assert max(len(result.stdout), len(result.stderr)) <= CAP + 256
            assert result.truncated_bytes >= 0


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[SandboxRequest], bytes]:
    """Requests, and what a guest says to them, sometimes to fewer or more than there are."""
    requests = draw(st.lists(st.sampled_from(REQUESTS), max_size=4))
    answered = [*requests, *draw(st.lists(st.sampled_from(REQUESTS), max_size=1))]
    kept = draw(st.integers(0, len(answered)))
    return requests, b"".join(draw(damaged(request)) for request in answered[:kept])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives(), st.lists(st.integers(0, 20), max_size=8))
def _any_stream(life: tuple[list[SandboxRequest], bytes], sizes: list[int]) -> None:
    asyncio.run(converse(*life, sizes))


def test_any_stream_of_a_guest_ends_in_answers_refusals_or_the_end_of_its_link() -> None:
    SEEN.clear()
    _any_stream()
    print(f"guest streams: {dict(sorted(SEEN.items()))}")
    assert SEEN.keys() == {"answered", "refused", "lost", "waits", "ended"}


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(REQUESTS).flatmap(lambda one: st.tuples(st.just(one), plausible(one))))
def _any_answer(case: tuple[SandboxRequest, list[bytes]]) -> None:
    request, said = case
    try:
        result = decode_answer(request, unpack(pack(said)[4:]), CAP)
    except GuestProtocolError:
        SEEN["broken"] += 1
    except SandboxError as refused:
        SEEN["refused" if len(refused.detail) <= 200 else "a long detail"] += 1
    else:
        SEEN[type(result).__name__] += 1


def test_any_fields_are_an_answer_of_the_right_kind_or_a_named_error() -> None:
    SEEN.clear()
    _any_answer()
    print(f"guest answers: {dict(sorted(SEEN.items()))}")

    assert SEEN.keys() == {"broken", "refused", "ExecResult", "bytes", "NoneType"}
