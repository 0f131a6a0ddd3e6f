"""Reasoning of a chat format: split from answers, cut out of sampled ids, never tokenised again."""

import pytest

from tests.unit.workers.rollout.builders import CHAT, VOCABULARY
from venusrl.env.messages import Message, ToolCall
from workers.models.char_chat import CharFormat
from workers.models.chatml import ChatMlFormat, chatml_vocabulary
from workers.models.reasoning import Reasoning, read_reasoning

THINK = Reasoning("<think>", "</think>", is_dropped=True)
BYTES = chatml_vocabulary()
END = BYTES.special("<|im_end|>")
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("answer", "reasoning", "rest"),
    [
        ("<think>\nso\n</think>\n\n42", "so", "42"),
        ("so</think>42", "so", "42"),
        ("<think>never closed", "never closed", ""),
        ("42", "", "42"),
        ("42 <think>", "", "42 <think>"),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
    ],
)
def test_an_answer_is_split_and_its_ids_are_cut_at_the_same_place(
    answer: str, reasoning: str, rest: str
) -> None:
    assert THINK.split(answer) == (reasoning, rest)
    chat = ChatMlFormat(BYTES, THINK)
    for end in ((), (END,)):
        sampled = (*BYTES.encode(answer), *end)
        later = chat.without_reasoning(sampled)
        assert later == (*BYTES.encode(rest), *end)
        message = chat.parse(sampled, 0).message
        assert (message.reasoning, message.content) == (reasoning, rest)


def test_a_call_inside_of_reasoning_is_no_call() -> None:
    chat = ChatMlFormat(BYTES, THINK)
    parsed = chat.parse((*BYTES.encode(f"<think>{CALL}</think>{CALL}"), END), 3).message
    assert parsed.tool_calls == (ToolCall("call_3_0", "f", "{}"),)
    assert parsed.reasoning == CALL


def test_character_formats_have_reasoning_too() -> None:
    chat = CharFormat(
        VOCABULARY, CHAT.roles, CHAT.answer, CHAT.call, "f", "x", Reasoning("^", "=", True)
    )
    sampled = VOCABULARY.encode("^12=a5;")
    assert chat.parse(sampled, 0).message == Message("assistant", "5", reasoning="12")
    assert chat.without_reasoning(sampled) == VOCABULARY.encode("a5;")
    assert chat.drops_reasoning
    assert not CHAT.drops_reasoning
    assert CHAT.without_reasoning(sampled) == sampled


def test_a_description_is_read_or_refused() -> None:
    assert read_reasoning(None) is None
    assert read_reasoning({"open": "", "close": "x"}) == Reasoning("", "x", True)
    kept = read_reasoning({"open": "<think>", "close": "</think>", "history": "keep"})
    assert kept == Reasoning("<think>", "</think>", False)
    bad: object
    for bad in (
        {"open": "a", "close": ""},
        {"open": 1, "close": "x"},
        [],
        {"open": "", "close": "x", "history": 1},
    ):
        with pytest.raises(AssertionError):
            read_reasoning(bad)
