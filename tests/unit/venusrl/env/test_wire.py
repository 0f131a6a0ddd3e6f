"""Records and frames: what one side writes the other reads, and nothing else is read."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from venusrl.env.messages import Message, Rollout, Task, ToolCall
from venusrl.env.sandbox import (
    ExecRequest,
    ExecResult,
    PythonRequest,
    ReadRequest,
    SandboxRequest,
    SandboxResult,
    WriteRequest,
)
from venusrl.env.values import Unscorable
from venusrl.env.wire import (
    FRAME_BYTES_MAX,
    BadRecord,
    FrameDecoder,
    clean_text,
    encode_frame,
    message_from_json,
    request_from_json,
    request_to_json,
    result_from_json,
    result_to_json,
    rollout_from_json,
    rollout_to_json,
    value_from_json,
    value_to_json,
)


@given(st.lists(st.dictionaries(st.text(), st.text()), max_size=5), st.integers(1, 7))
def test_frames_survive_any_cut_of_the_stream(records: list[dict[str, str]], size: int) -> None:
    stream = b"".join(encode_frame(record) for record in records)
    decoder = FrameDecoder()
    found = []
    for start in range(0, len(stream), size):
        found += decoder.feed(stream[start : start + size])
    assert found == records


def test_a_length_beyond_the_limit_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(BadRecord, match="exceeds"):
        FrameDecoder().feed(struct.pack(">I", FRAME_BYTES_MAX + 1))


def test_a_record_beyond_the_limit_is_not_sent() -> None:
    with pytest.raises(BadRecord, match="exceeds"):
        encode_frame({"a": "x" * FRAME_BYTES_MAX})


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff\xff", b"1", b"[" * 50_000])
def test_what_is_not_an_object_ends_the_stream(body: bytes) -> None:
    with pytest.raises(BadRecord):
        FrameDecoder().feed(struct.pack(">I", len(body)) + body)


def test_a_frame_cannot_say_nan() -> None:
    with pytest.raises(BadRecord):
        encode_frame({"value": float("nan")})


def test_a_rollout_survives_the_way() -> None:
    rollout = Rollout(
        id="ro_1",
        index=3,
        task=Task("t", (Message("user", "12"),), {"a": [1]}, {"m": None}, {"f": "x"}),
        messages=(
            Message("user", "12"),
            Message("assistant", "", (ToolCall("c", "calculator", "{", error="cut"),)),
            Message("tool", "19", tool_call_id="c"),
        ),
        end="done",
        turns=2,
        state={"n": 1},
        artefacts={"calls.jsonl": "{}"},
    )
    shown = json.loads(json.dumps(rollout_to_json(rollout)))
    assert rollout_from_json(shown) == rollout


@pytest.mark.parametrize(
    ("request_", "result"),
    [
        (ExecRequest(("ls", "-l"), b"\xff", 2.5), ExecResult(1, b"\xf0\xff", b"e", 7, True)),
        (PythonRequest("print(1)", 1.0), ExecResult(0)),
        (ReadRequest("a/b"), b"\x00\xff"),
        (WriteRequest("a/b", b"\x00\xff"), None),
    ],
)
def test_sandbox_calls_survive_the_way(request_: SandboxRequest, result: SandboxResult) -> None:
    assert request_from_json(json.loads(json.dumps(request_to_json(request_)))) == request_
    assert result_from_json(request_, json.loads(json.dumps(result_to_json(result)))) == result


@pytest.mark.parametrize("value", [1.0, -0.2, Unscorable("timeout", "component a")])
def test_values_survive_the_way(value: float | Unscorable) -> None:
    assert value_from_json(value_to_json(value)) == value


def test_values_are_checked_again_on_arrival() -> None:
    assert isinstance(value_from_json(True), Unscorable)
    assert isinstance(value_from_json(None), Unscorable)
    assert isinstance(value_from_json(1e308), Unscorable)


@pytest.mark.parametrize(
    "record",
    [
        None,
        {"role": "tool"},
        {"role": "god", "content": ""},
        {"role": "user", "content": 1},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]},
        {"role": "tool", "content": "", "tool_call_id": 3},
    ],
)
def test_malformed_messages_are_refused(record: dict[str, str] | None) -> None:
    with pytest.raises(BadRecord):
        message_from_json(record)


def test_text_that_utf8_cannot_say_is_replaced() -> None:
    assert clean_text("a\ud800b") == "a?b"
    assert clean_text(b"a\xf0\xffb") == "a\ufffd\ufffdb"
    clean_text("a\ud800b").encode()
