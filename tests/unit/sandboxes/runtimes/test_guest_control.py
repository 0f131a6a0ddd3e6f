"""The host's own requests to a machine's agent, and what it takes for their answers."""

import pytest

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
from sandboxes.runtimes.guest_link import (
    GuestProtocolError,
    decode_answer,
    encode_request,
    unpack,
)
from venusrl.env.sandbox import SandboxError

ALL: tuple[ControlRequest, ...] = (
    PrepareSnapshot(),
    SetClock(),
    Trim(),
    AskStats(),
    Place("/grader/a", b"x"),
)


@pytest.mark.parametrize("request_", ALL)
def test_each_request_is_one_frame_that_names_its_kind(request_: ControlRequest) -> None:
    frame = encode_request(request_, 1000)
    kinds = {b"prepare_snapshot", b"clock", b"trim", b"stats", b"place"}
    assert unpack(frame[4:])[0] in kinds


def test_a_resume_carries_identity_limits_and_environment_in_their_order() -> None:
    resume = Resume(b"e" * 32, "host-1", 7, (1, 2, 3, 4), {"A": "b"})
    kind, entropy, time_ns, hostname, *rest = resume.fields()
    assert (kind, entropy, hostname) == (b"resume", b"e" * 32, b"host-1")
    assert int(time_ns) > 0
    assert rest == [b"7", b"1", b"2", b"3", b"4", b"A", b"b"]


@pytest.mark.parametrize("request_", [PrepareSnapshot(), SetClock(), Trim()])
@pytest.mark.parametrize("said", [[b"bytes", b""], [b"done"], [b"error", b"denied", b""]])
def test_anything_but_ok_breaks_the_protocol(request_: ControlRequest, said: list[bytes]) -> None:
    assert decode_answer(request_, [b"ok"], 1000) is None
    with pytest.raises(GuestProtocolError):
        decode_answer(request_, said, 1000)


def test_a_refused_place_is_the_guests_refusal() -> None:
    with pytest.raises(SandboxError, match="denied"):
        decode_answer(Place("/a", b""), [b"error", b"denied", b"no"], 1000)


@pytest.mark.parametrize("text", [b"", b"1 2 3", b"1 2 3 x", b"1 2 3 4 5", b"\xff " * 4])
def test_figures_that_are_none_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        GuestStats.of(text)


def test_figures_are_never_negative() -> None:
    assert GuestStats.of(b"10 -5 3 2") == GuestStats(10, 0, 3, 2)
