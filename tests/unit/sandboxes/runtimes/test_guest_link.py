"""The host's parser of guest frames: the guest is hostile input, also when it answers slowly."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.runtimes import guest_link
from sandboxes.runtimes.guest_link import (
    GUEST_FRAME_BYTES_MAX,
    LATE,
    LINE_MAX,
    GuestLink,
    GuestProtocolError,
    decode_answer,
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
    SandboxRequest,
    SandboxResult,
    WriteRequest,
)

HELLO = pack([b"hello", b"1", b"3.11.2"])
DONE = pack([b"done", b"0", b"0", b"0", b"out", b"err"])


class Guest:
    """The other end of a link, driven by the test."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.link = GuestLink(1000, self.lost.append)
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


async def lost(answer: "asyncio.Future[SandboxResult]") -> str:
    with pytest.raises(SandboxError) as error:
        await answer
    assert error.value.reason == "lost"
    return error.value.detail


async def test_answers_come_in_the_order_of_requests(guest: Guest) -> None:
    first, second = guest.link.call(ExecRequest(("a",))), guest.link.call(ReadRequest("b"))
    guest.say(DONE + pack([b"bytes", b"content"]))
    assert await first == ExecResult(0, b"out", b"err")
    assert await second == b"content"


async def test_a_frame_may_arrive_byte_by_byte(guest: Guest) -> None:
    answer = guest.link.call(PythonRequest("x"))
    for at in range(len(DONE)):
        guest.say(DONE[at : at + 1])
        await asyncio.sleep(0)
    assert await answer == ExecResult(0, b"out", b"err")


@pytest.mark.parametrize(
    "said",
    [
        (GUEST_FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        pack([b"done", b"0", b"0", b"0", b"out"]),
        pack([b"done", b"zero", b"0", b"0", b"", b""]),
        pack([b"done", b"9" * 100, b"0", b"0", b"", b""]),
        pack([b"done", b"70000", b"0", b"0", b"", b""]),
        pack([b"done", b"0", b"0", b"0", b"x" * 2000, b""]),
        pack([b"bytes", b"x"]),
        pack([b"ok"]),
        pack([b"error", b"lost", b"really"]),
        (4).to_bytes(4, "big") + b"\x00\x00\x00\x09",
        (0).to_bytes(4, "big"),
        pack([b"x"] * 9),
        DONE + DONE,
    ],
)
async def test_what_no_guest_agent_says_ends_the_link(guest: Guest, said: bytes) -> None:
    answer = guest.link.call(ExecRequest(("a",)))
    guest.say(said)
    await eventually(lambda: guest.lost)
    assert guest.lost[0].startswith("its guest agent broke the protocol")
    if said != DONE + DONE:
        await lost(answer)
    await lost(guest.link.call(ReadRequest("later")))
    assert len(guest.lost) == 1


async def test_a_guest_that_ends_fails_everything_that_waits(guest: Guest) -> None:
    answers = [guest.link.call(ReadRequest("a")) for _ in range(3)]
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
    meanwhile = guest.link.call(PythonRequest("y", timeout_s=0.01))
    done, _ = await asyncio.wait({before, meanwhile}, timeout=0.3)
    assert not done
    guest.link.go_on()
    assert await lost(before) == LATE
    await lost(meanwhile)


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
    guest.say(DONE + DONE)
    await asyncio.gather(first, second)


async def test_a_caller_that_is_cancelled_does_not_shift_the_answers(guest: Guest) -> None:
    first, second = guest.link.call(ReadRequest("a")), guest.link.call(ReadRequest("b"))
    first.cancel()
    guest.say(pack([b"bytes", b"1"]) + pack([b"bytes", b"2"]))
    assert await second == b"2"


async def test_a_refusal_of_the_guest_is_the_callers(guest: Guest) -> None:
    answer = guest.link.call(ReadRequest("a"))
    guest.say(pack([b"error", b"not_found", b"no such file"]))
    with pytest.raises(SandboxError, match="not_found: no such file"):
        await answer
    assert guest.lost == []


async def test_too_many_waiting_calls_and_too_large_files_are_refused(guest: Guest) -> None:
    too_large = guest.link.call(WriteRequest("a", bytes(FILE_BYTES_MAX + 1)))
    with pytest.raises(SandboxError, match="too_large"):
        await too_large
    waiting = [guest.link.call(ReadRequest("a")) for _ in range(LINE_MAX)]
    with pytest.raises(SandboxError, match="refused"):
        await guest.link.call(ReadRequest("a"))
    guest.link.fail("done")
    await asyncio.gather(*waiting, return_exceptions=True)


REQUESTS: list[SandboxRequest] = [
    ExecRequest(("a",)),
    PythonRequest("x"),
    ReadRequest("a"),
    WriteRequest("a", b""),
]


@given(st.binary(max_size=200), st.sampled_from(REQUESTS))
def test_any_bytes_are_an_answer_or_a_named_refusal(body: bytes, request: SandboxRequest) -> None:
    try:
        decode_answer(request, unpack(body), 1000)
    except (GuestProtocolError, SandboxError):
        pass


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=8))
def test_fields_survive_the_frame(fields: list[bytes]) -> None:
    assert unpack(pack(fields)[4:]) == fields
