"""The host's own requests to a machine's agent, and what it takes for their answers."""

import asyncio

import pytest

from sandboxes.runtimes.guest_answers import AnswerChannel, answer_fields
from sandboxes.runtimes.guest_control import (
    AskStats,
    ControlRequest,
    GuestStats,
    Place,
    PrepareSnapshot,
    Resume,
    SetClock,
    Trim,
)
from sandboxes.runtimes.guest_wire import GuestProtocolError
from venusrl.env.sandbox import SandboxError

ALL: tuple[ControlRequest, ...] = (
    PrepareSnapshot(),
    SetClock(),
    Trim(),
    AskStats(),
    Place("/grader/a", b"x"),
)


@pytest.mark.parametrize("request_", ALL)
def test_each_request_names_its_kind(request_: ControlRequest) -> None:
    kinds = {b"prepare_snapshot", b"clock", b"trim", b"stats", b"place"}
    assert answer_fields(request_)[0] in kinds


def test_a_resume_carries_identity_limits_and_environment_in_their_order() -> None:
    resume = Resume(b"e" * 32, "host-1", 7, (1, 2, 3, 4), {"A": "b"})
    kind, entropy, time_ns, hostname, *rest = resume.fields()
    assert (kind, entropy, hostname) == (b"resume", b"e" * 32, b"host-1")
    assert int(time_ns) > 0
    assert rest == [b"7", b"1", b"2", b"3", b"4", b"A", b"b"]


@pytest.mark.parametrize("request_", [PrepareSnapshot(), SetClock(), Trim()])
@pytest.mark.parametrize("said", [[b"bytes", b""], [b"done"], [b"error", b"denied", b""]])
async def test_anything_but_ok_breaks_the_protocol(
    request_: ControlRequest, said: list[bytes]
) -> None:
    channel = AnswerChannel(request_, asyncio.get_running_loop())
    with pytest.raises(GuestProtocolError):
        channel.take(said)
    assert channel.take([b"ok"])
    assert await channel.answer is None


async def test_a_refused_place_is_the_guests_refusal() -> None:
    channel = AnswerChannel(Place("/a", b""), asyncio.get_running_loop())
    assert channel.take([b"error", b"denied", b"no"])
    with pytest.raises(SandboxError, match="denied"):
        await channel.answer


@pytest.mark.parametrize("text", [b"", b"1 2 3", b"1 2 3 x", b"1 2 3 4 5", b"\xff " * 4])
def test_figures_that_are_none_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        GuestStats.of(text)


def test_figures_are_never_negative() -> None:
    assert GuestStats.of(b"10 -5 3 2") == GuestStats(10, 0, 3, 2)
