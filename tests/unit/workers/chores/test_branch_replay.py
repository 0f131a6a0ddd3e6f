"""What a replay compares, and what is compared of files. No environment, no sandbox."""

from typing import Any

import pytest

from venusrl.env.host.cases import case_record
from venusrl.env.messages import Message, Task, ToolCall
from workers.chores.branch_files import differing, sum_of
from workers.chores.branch_replay import with_tool_output
from workers.chores.handling import ChoreFailed

TOOL: dict[str, Any] = {"role": "tool", "content": "1", "tool_call_id": "call_0_0"}
USER: dict[str, Any] = {"role": "user", "content": "go on"}
TASK = Task("t1", (Message("user", "12+07"),), "19")


def test_one_tool_message_is_replaced_and_the_others_stay() -> None:
    assert with_tool_output([TOOL, USER], "2") == [TOOL | {"content": "2"}, USER]
    assert TOOL["content"] == "1"


@pytest.mark.parametrize("said", [[], [USER], [TOOL, TOOL]])
def test_no_tool_message_or_several_cannot_be_replaced(said: list[dict[str, Any]]) -> None:
    with pytest.raises(ChoreFailed) as caught:
        with_tool_output(said, "2")
    assert caught.value.code == "no_tool_output"


def test_files_differ_by_content_and_by_name() -> None:
    one, other = {"./a": "1", "./b": "2"}, {"./a": "1", "./b": "3", "./c": "4"}
    assert differing([one, dict(one)]) == []
    assert differing([one, other]) == ["./b", "./c"]
    assert differing([]) == []
    assert sum_of(one) == sum_of(dict(reversed(one.items())))
    assert sum_of(one) != sum_of(other)


def test_a_conversation_becomes_turns_with_their_replies() -> None:
    call = ToolCall("call_0_0", "calculator", '{"expression": "1"}')
    said = (
        Message("assistant", "", (call,)),
        Message("tool", "19", tool_call_id="call_0_0"),
        Message("assistant", "19"),
    )
    assert case_record("n", ("test", TASK), said, {"end": "done", "total": 1.0}) == {
        "name": "n",
        "split": "test",
        "task": "t1",
        "turns": [
            {
                "content": "",
                "tool_calls": [{"name": "calculator", "arguments": '{"expression": "1"}'}],
                "replies": ["19"],
            },
            {"content": "19", "tool_calls": [], "replies": []},
        ],
        "expect": {"end": "done", "total": 1.0},
    }


@pytest.mark.parametrize(
    "said",
    [
        (Message("tool", "19", tool_call_id="c"), Message("assistant", "1")),
        (Message("assistant", "", (ToolCall("c", "x", "{", error="cut"),)),),
        (Message("assistant", "it is $answer"),),
    ],
)
def test_what_no_script_can_say_is_no_case(said: tuple[Message, ...]) -> None:
    assert case_record("n", ("test", TASK), said, {}) is None
