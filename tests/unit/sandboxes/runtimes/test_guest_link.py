"""The host's parser of guest frames: the guest is hostile input, also when it answers slowly."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.commands import COMMANDS_MAX, Command, Process, ProcessEnd, StreamName
from sandboxes.files import Listing, ListRequest, StatRequest
from sandboxes.runtimes import guest_link
from sandboxes.runtimes.guest_link import ASKS_MAX, LATE, LINE_MAX, GuestLink
from sandboxes.runtimes.guest_wire import (
    GUEST_FRAME_BYTES_MAX,
    WORDS_MAX,
    GuestProtocolError,
    number_in,
    pack,
    unpack,
)
from tests.support.waiting import eventually
from venusrl.env.sandbox import (
    FILE_BYTES_MAX,
    ExecRequest,
    ExecResult,
    PythonRequest,
    ReadRequest,
    SandboxError,
    WriteRequest,
)

HELLO = pack([b"hello", b"2", b"3.11.2"])


def said(kind: bytes, channel: int, *fields: bytes) -> bytes:
    """One frame of a guest."""
    return pack([kind, b"%d" % channel, *fields])


def done(channel: int) -> bytes:
    """A whole short job."""
    return (
        said(b"started", channel, b"7")
        + said(b"out", channel, b"out")
        + said(b"err", channel, b"err")
        + said(b"end", channel, b"0", b"0", b"0", b"0")
    )


class Guest:
    """The other end of a link, driven by the test."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.link = GuestLink(1000, self.lost.append)
        self.heard = bytearray()
        self.ours, theirs = socket.socketpair()
        self._theirs = theirs
        self.ours.setblocking(False)

    async def connect(self) -> None:
        self._theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self.link, sock=self._theirs)

    def say(self, data: bytes) -> None:
        self.ours.send(data)


@pytest.fixture
async def guest() -> AsyncIterator[Guest]:
    made = Guest()
    await made.connect()
    made.say(HELLO)
    await made.link.ready
    yield made
    made.link.fail("test over")
    made.ours.close()


async def lost(answer: "asyncio.Future[Any]") -> str:
    with pytest.raises(SandboxError) as error:
        await answer
    assert error.value.reason == "lost"
    return error.value.detail


def frames(guest: Guest) -> list[list[bytes]]:
    """What the host has said since the last look."""
    try:
        guest.heard += guest.ours.recv(1 << 20)
    except BlockingIOError:
        return []
    found = []
    while len(guest.heard) >= 4 + (size := int.from_bytes(guest.heard[:4], "big")):
        body, fields = bytes(guest.heard[4 : 4 + size]), []
        del guest.heard[: 4 + size]
        while body:
            end = 4 + int.from_bytes(body[:4], "big")
            fields.append(body[4:end])
            body = body[end:]
        found.append(fields)
    return found


async def read_to_its_end(process: Process) -> None:
    while await process.read():
        pass


async def test_calls_go_out_one_after_the_other(guest: Guest) -> None:
    first, second = guest.link.call(ExecRequest(("a",))), guest.link.call(ReadRequest("b"))
    guest.say(done(1) + said(b"bytes", 2, b"content"))
    assert await first == ExecResult(0, b"out", b"err")
    assert await second == b"content"


async def test_questions_overtake_calls_and_each_other(guest: Guest) -> None:
    call = guest.link.call(ExecRequest(("a",)))
    asks = [guest.link.ask(ReadRequest(name)) for name in "ab"]
    guest.say(said(b"bytes", 3, b"second") + said(b"bytes", 2, b"first"))
    assert await asyncio.gather(*asks) == [b"first", b"second"]
    assert not call.done()
    guest.say(done(1))
    await call


async def test_a_frame_may_arrive_byte_by_byte(guest: Guest) -> None:
    answer = guest.link.call(PythonRequest("x"))
    for at in range(len(done(1))):
        guest.say(done(1)[at : at + 1])
        await asyncio.sleep(0)
    assert await answer == ExecResult(0, b"out", b"err")


STARTED = said(b"started", 1, b"7")
END = said(b"end", 1, b"0", b"0", b"0", b"0")


@pytest.mark.parametrize(
    "stream",
    [
        (GUEST_FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        STARTED + said(b"end", 1, b"0", b"0", b"0"),
        STARTED + said(b"end", 1, b"zero", b"0", b"0", b"0"),
        STARTED + said(b"end", 1, b"9" * 100, b"0", b"0", b"0"),
        STARTED + said(b"end", 1, b"70000", b"0", b"0", b"0"),
        STARTED + said(b"end", 1, b"0", b"65", b"0", b"0"),
        STARTED + said(b"end", 1, b"0", b"0", b"0", b"-1"),
        STARTED + said(b"out", 1, b"x" * 2000),
        STARTED + said(b"out", 1, b"x" * 900) * 2,
        STARTED + said(b"out", 1, b""),
        STARTED + said(b"took", 1, b"1"),
        STARTED + STARTED,
        STARTED + said(b"error", 1, b"denied", b"late"),
        END,
        said(b"out", 1, b"x"),
        said(b"started", 1, b"-1"),
        said(b"started", 2, b"7"),
        said(b"bytes", 1, b"x"),
        said(b"ok", 1),
        said(b"error", 1, b"lost", b"really"),
        HELLO,
        pack([b"end"]),
        (4).to_bytes(4, "big") + b"\x00\x00\x00\x09",
        (0).to_bytes(4, "big"),
        pack([b"x"] * 9),
        done(1) + done(1),
        done(1) + said(b"out", 1, b"x"),
    ],
)
async def test_what_no_guest_agent_says_ends_the_link(guest: Guest, stream: bytes) -> None:
    answer = guest.link.call(ExecRequest(("a",)))
    guest.say(stream)
    await eventually(lambda: guest.lost)
    assert guest.lost[0].startswith("its guest agent broke the protocol")
    if not stream.startswith(done(1)):
        await lost(answer)
    await lost(guest.link.call(ReadRequest("later")))
    await lost(guest.link.ask(ReadRequest("later")))
    await lost(guest.link.start(Command(("later",))))
    assert len(guest.lost) == 1


async def test_a_guest_that_ends_fails_everything_that_waits(guest: Guest) -> None:
    process = guest.link.start(Command(("a",)))
    guest.say(STARTED)
    running = await process
    answers: list[asyncio.Future[Any]] = [guest.link.call(ReadRequest("a")) for _ in range(3)]
    answers += [asyncio.ensure_future(running.wait()), asyncio.ensure_future(running.read())]
    await asyncio.sleep(0)
    guest.ours.close()
    for answer in answers:
        assert await lost(answer) == "its guest agent ended"


async def test_a_guest_that_is_silent_past_the_timeout_is_cut_off(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_link, "ANSWER_GRACE_S", 0.05)
    answer = guest.link.call(PythonRequest("x", timeout_s=0.01))
    assert await lost(answer) == LATE


async def test_no_deadline_runs_while_its_sandbox_is_paused(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_link, "ANSWER_GRACE_S", 0.05)
    before = guest.link.call(PythonRequest("x", timeout_s=0.01))
    guest.link.hold()
    meanwhile = guest.link.start(Command(("y",), timeout_s=0.01))
    waiting: set[asyncio.Future[Any]] = {before, meanwhile}
    done_, _ = await asyncio.wait(waiting, timeout=0.3)
    assert not done_
    guest.link.go_on()
    assert await lost(before) == LATE
    await lost(meanwhile)


async def test_a_deadline_waits_for_our_own_reader_but_not_for_a_silent_guest(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_link, "ANSWER_GRACE_S", 0.05)
    starting = guest.link.start(Command(("a",), timeout_s=0.01))
    guest.say(STARTED + said(b"out", 1, b"unread"))
    process = await starting
    done_, _ = await asyncio.wait({asyncio.ensure_future(process.wait())}, timeout=0.3)
    assert not done_
    assert await process.read() is not None
    with pytest.raises(SandboxError, match=LATE):
        await process.read()


async def test_bytes_after_the_end_of_a_link_are_not_kept(guest: Guest) -> None:
    guest.link.fail("test")
    guest.link.data_received(b"x" * 1000)
    assert len(guest.link._buffer) == 0


async def test_the_deadline_of_a_request_starts_when_its_turn_comes(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_link, "ANSWER_GRACE_S", 0.5)
    first = guest.link.call(PythonRequest("x", timeout_s=30.0))
    second = guest.link.call(PythonRequest("y", timeout_s=0.0))
    await eventually(lambda: guest.link.is_busy)
    guest.say(done(1))
    await first
    guest.say(done(2))
    await second
    assert not guest.link.is_busy


async def test_a_caller_that_is_cancelled_does_not_shift_the_answers(guest: Guest) -> None:
    first, second = guest.link.call(ReadRequest("a")), guest.link.call(ReadRequest("b"))
    first.cancel()
    guest.say(said(b"bytes", 1, b"1") + said(b"bytes", 2, b"2"))
    assert await second == b"2"


async def test_a_refusal_of_the_guest_is_the_callers(guest: Guest) -> None:
    answer = guest.link.call(ReadRequest("a"))
    starting = guest.link.start(Command(("a",)))
    refusal = (b"not_found", b"no such file")
    guest.say(said(b"error", 1, *refusal) + said(b"error", 2, *refusal))
    for refused in (answer, starting):
        with pytest.raises(SandboxError, match="not_found: no such file"):
            await refused
    assert guest.lost == []


async def test_too_many_requests_and_too_large_ones_are_refused(guest: Guest) -> None:
    for too_large in (
        guest.link.call(WriteRequest("a", bytes(FILE_BYTES_MAX + 1))),
        guest.link.ask(WriteRequest("a", bytes(FILE_BYTES_MAX + 1))),
        guest.link.call(ExecRequest(("a",) * (WORDS_MAX + 1))),
        guest.link.start(Command(("a",), {str(one): "" for one in range(WORDS_MAX // 2)})),
    ):
        with pytest.raises(SandboxError, match="too_large"):
            await too_large
    waiting: list[asyncio.Future[Any]] = [
        *(guest.link.call(ReadRequest("a")) for _ in range(LINE_MAX)),
        *(guest.link.ask(ReadRequest("a")) for _ in range(ASKS_MAX - 1)),
        *(guest.link.start(Command(("a",))) for _ in range(COMMANDS_MAX)),
    ]
    for refused in (
        guest.link.call(ReadRequest("a")),
        guest.link.ask(ReadRequest("a")),
        guest.link.start(Command(("a",))),
    ):
        with pytest.raises(SandboxError, match="refused"):
            await refused
    guest.link.fail("done")
    assert all(isinstance(one.exception(), SandboxError) for one in waiting)


ENTRY = (b"name", b"file", b"3", b"420", b"-5")


@pytest.mark.parametrize(
    "entry",
    [
        (b"", *ENTRY[1:]),
        (b"a/b", *ENTRY[1:]),
        (b"a\0", *ENTRY[1:]),
        (b"x" * 256, *ENTRY[1:]),
        (b"name", b"socket", b"3", b"420", b"0"),
        (b"name", b"file", b"-3", b"420", b"0"),
        (b"name", b"file", b"3", b"99999", b"0"),
        (b"name", b"file", b"3", b"420"),
    ],
)
async def test_what_is_no_entry_ends_the_link(guest: Guest, entry: tuple[bytes, ...]) -> None:
    answer = guest.link.ask(ListRequest("a"))
    guest.say(said(b"entry", 1, *entry))
    await lost(answer)


async def test_a_listing_has_no_more_entries_than_were_asked_for(guest: Guest) -> None:
    answer = guest.link.ask(ListRequest("a", 2))
    guest.say(said(b"entry", 1, *ENTRY) * 2 + said(b"ok", 1, b"0"))
    listing = await answer
    assert isinstance(listing, Listing)
    assert (len(listing.entries), listing.is_whole) == (2, False)
    answer = guest.link.ask(ListRequest("a", 2))
    guest.say(said(b"entry", 2, *ENTRY) * 3)
    await lost(answer)


async def test_a_stat_is_of_one_entry(guest: Guest) -> None:
    answer = guest.link.ask(StatRequest("a"))
    guest.say(said(b"ok", 1, b"1"))
    await lost(answer)


async def test_credit_is_given_as_it_is_read_and_held_to(guest: Guest) -> None:
    starting = guest.link.start(Command(("a",)))
    chunk = said(b"out", 1, b"x" * 65536)
    guest.ours.setblocking(True)
    await asyncio.to_thread(guest.ours.sendall, STARTED + chunk * 4)
    process = await starting
    guest.ours.setblocking(False)
    assert [one[0] for one in frames(guest)] == [b"exec"]
    read = 0
    while read < 262_144 and (one := await process.read()) is not None:
        read += len(one.content)
    given: list[list[bytes]] = []
    while sum(int(one[2]) for one in given) < 131_072:
        await asyncio.sleep(0)
        given += frames(guest)
    assert {one[0] for one in given} == {b"credit"}
    guest.ours.setblocking(True)
    await asyncio.to_thread(guest.ours.sendall, chunk * 5)
    with pytest.raises(SandboxError, match="more output than was asked for"):
        await read_to_its_end(process)


async def test_input_waits_for_room(guest: Guest) -> None:
    starting = guest.link.start(Command(("a",)))
    guest.say(STARTED)
    process = await starting
    frames(guest)
    writing = asyncio.ensure_future(process.write(bytes(300_000)))
    sent = 0
    while sent < 262_144:
        await asyncio.sleep(0)
        sent += sum(len(one[2]) for one in frames(guest))
    assert not writing.done()
    guest.say(said(b"took", 1, b"100000"))
    await writing
    process.close_input()
    await asyncio.sleep(0)
    assert [one[0] for one in frames(guest)] == [b"data", b"eof"]
    guest.say(END)
    assert await process.wait() == ProcessEnd(0)
    assert await process.read() is None


async def test_a_program_that_is_stopped_says_nothing_more(guest: Guest) -> None:
    starting = guest.link.start(Command(("a",)))
    guest.say(STARTED + said(b"out", 1, b"before"))
    process = await starting
    process.stop()
    process.stop()
    for _ in range(8):
        guest.say(said(b"out", 1, b"x" * 65536))
        await asyncio.sleep(0)
    guest.say(said(b"end", 1, b"0", b"9", b"0", b"0"))
    assert await process.wait() == ProcessEnd(0, 9)
    assert await process.read() is None
    kinds = [one[0] for one in frames(guest)]
    assert (kinds.count(b"stop"), kinds.count(b"credit") >= 2) == (1, True)
    assert {one.value for one in StreamName} == {"stdout", "stderr"}


async def test_a_program_that_nobody_waits_for_is_stopped(guest: Guest) -> None:
    starting = guest.link.start(Command(("a",)))
    starting.cancel()
    guest.say(STARTED)
    kinds: list[bytes] = []
    while b"stop" not in kinds:
        await asyncio.sleep(0)
        kinds += [one[0] for one in frames(guest)]
    assert guest.link.is_busy
    guest.say(END)
    await eventually(lambda: not guest.link.is_busy)


@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_a_named_error(body: bytes) -> None:
    try:
        assert pack(unpack(body))[4:] == body
    except GuestProtocolError:
        pass


@given(st.binary(max_size=30))
def test_any_bytes_are_a_number_within_its_bounds_or_a_named_error(text: bytes) -> None:
    try:
        assert -5 <= number_in(text, -5, 300) <= 300
    except GuestProtocolError:
        pass


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=8))
def test_fields_survive_the_frame(fields: list[bytes]) -> None:
    assert unpack(pack(fields)[4:]) == fields
