"""Parts of the runner that need no process: checked replies, captured prints."""

from typing import Any

import pytest

from venusrl.env._runner.faults import RunnerFault
from venusrl.env._runner.instances import CONTENT_CHARS_MAX, check_reply
from venusrl.env._runner.logs import (
    ENTRIES_WAITING_MAX,
    LINE_CHARS_MAX,
    LogStream,
    current_instance,
)
from venusrl.env.messages import Message, ToolCall

ASKED = Message("assistant", "", (ToolCall("c1", "a", "{}"), ToolCall("c2", "b", "{}")))


def tool_reply(call_id: str, content: Any = "ok") -> Message:
    return Message("tool", content, tool_call_id=call_id)


def test_one_reply_each_in_order_is_taken_and_others_may_stand_between() -> None:
    answer = [tool_reply("c1"), Message("user", "hint"), tool_reply("c2")]
    assert check_reply(ASKED, answer) == answer


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [tool_reply("c1")],
        [tool_reply("c2"), tool_reply("c1")],
        [tool_reply("c1"), tool_reply("c2"), tool_reply("c2")],
        [tool_reply("c1"), tool_reply("no such call")],
        [tool_reply("c1"), tool_reply("c2", 3)],
        [tool_reply("c1"), tool_reply("c2"), Message("assistant", "I speak for the model")],
        ["c1", "c2"],
        "c1c2",
        3,
    ],
)
def test_a_reply_that_no_template_can_say_is_a_fault(answer: object) -> None:
    with pytest.raises(RunnerFault) as caught:
        check_reply(ASKED, answer)
    assert caught.value.cause == "bad_reply"


def test_bytes_as_content_are_decoded_with_replacement() -> None:
    found = check_reply(ASKED, [tool_reply("c1", b"\xf0\xff"), tool_reply("c2")])
    assert found[0].content == "\ufffd\ufffd"


def test_seventy_thousand_characters_pass_and_a_flood_is_cut() -> None:
    long, flood = "x" * 70_000, "y" * (CONTENT_CHARS_MAX + 5)
    found = check_reply(ASKED, [tool_reply("c1", long), tool_reply("c2", flood)])
    assert found[0].content == long
    assert found[1].content.endswith("[5 characters cut]")


def test_prints_are_filed_by_line_under_the_instance_that_printed() -> None:
    log = LogStream(lambda: None)
    current_instance.set("a")
    print("one\ntw", end="", file=log)
    current_instance.set("b")
    print("other", file=log)
    current_instance.set("a")
    print("o", file=log)
    found = [(frame["instance"], frame["text"]) for frame in log.take()]
    assert found == [("a", "one"), ("b", "other"), ("a", "two")]


def test_a_long_line_is_cut_and_an_open_one_is_closed_at_the_end() -> None:
    log = LogStream(lambda: None)
    current_instance.set("a")
    log.write("x" * (LINE_CHARS_MAX + 1))
    log.end_lines("a")
    assert [len(str(frame["text"])) for frame in log.take()] == [LINE_CHARS_MAX, 1]


def test_a_chatty_environment_loses_lines_and_the_loss_is_told() -> None:
    log = LogStream(lambda: None)
    log.write("x\n" * (ENTRIES_WAITING_MAX + 3))
    frames = log.take()
    assert len(frames) == ENTRIES_WAITING_MAX + 1
    assert frames[-1]["text"] == "[3 lines lost]"
