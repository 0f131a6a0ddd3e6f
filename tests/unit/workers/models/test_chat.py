"""Rendering appends and never rewrites; parsing loses no tool call."""

import json
from pathlib import Path

import pytest

from tests.support.engines import model_folder
from venusrl.env.messages import Message, ToolCall
from workers.models.chat import CALLS_MAX, ChatFormat, ChatMlFormat, ParsedAnswer, ParseReason
from workers.models.chatml import CALL_CLOSE, CALL_OPEN, IM_END, chatml_vocabulary
from workers.models.folder import builtin_path, read_folder
from workers.models.vocab import Vocabulary


@pytest.fixture
def char(tmp_path: Path) -> tuple[Vocabulary, ChatFormat]:
    folder = model_folder(tmp_path / "m")
    return folder.vocabulary, folder.chat


def chatml(text: str, *, ended: bool = True) -> ParsedAnswer:
    vocabulary = chatml_vocabulary()
    ids = vocabulary.encode(text) + ((vocabulary.special(IM_END),) if ended else ())
    return ChatMlFormat(vocabulary).parse(ids, turn=2)


def test_a_conversation_of_the_tiny_format_reads_as_documented(
    char: tuple[Vocabulary, ChatFormat],
) -> None:
    vocabulary, chat = char
    ids = chat.prompt([Message("user", "12+07+30")])
    sampled = vocabulary.encode("c12+07;")
    ids += sampled + chat.follow_up(sampled, [Message("tool", "19", tool_call_id="call_0_0")])
    assert vocabulary.decode(ids) == "^12+07+30=c12+07;r19;"


def test_a_call_of_the_tiny_format_names_its_tool_and_argument(
    char: tuple[Vocabulary, ChatFormat],
) -> None:
    vocabulary, chat = char
    parsed = chat.parse(vocabulary.encode("c12+07;"), turn=3)
    assert parsed.message.tool_calls == (
        ToolCall("call_3_0", "calculator", '{"expression": "12+07"}'),
    )
    assert parsed.errors == ()


@pytest.mark.parametrize(
    ("text", "reason"), [("c12+0", ParseReason.UNTERMINATED), ("c;", ParseReason.EMPTY)]
)
def test_a_broken_call_of_the_tiny_format_keeps_its_id(
    char: tuple[Vocabulary, ChatFormat], text: str, reason: ParseReason
) -> None:
    vocabulary, chat = char
    parsed = chat.parse(vocabulary.encode(text), turn=0)
    assert [(e.call_id, e.reason) for e in parsed.errors] == [("call_0_0", reason)]
    assert [call.id for call in parsed.message.tool_calls] == ["call_0_0"]


def test_an_answer_is_its_content_and_anything_else_is_kept_whole(
    char: tuple[Vocabulary, ChatFormat],
) -> None:
    vocabulary, chat = char
    assert chat.parse(vocabulary.encode("a49;"), 0).message.content == "49"
    assert chat.parse(vocabulary.encode("49;"), 0).message.content == "49;"
    assert chat.parse(vocabulary.encode("a49"), 0).message.content == "a49"
    assert chat.parse((), 0).message.content == ""


def test_an_answer_without_its_end_is_closed_before_the_replies(
    char: tuple[Vocabulary, ChatFormat],
) -> None:
    vocabulary, chat = char
    appended = chat.follow_up(vocabulary.encode("c12+0"), [Message("tool", "")])
    assert vocabulary.decode(appended) == ";r;"


def test_tiny_text_reads_a_question_line_and_answers_a_line() -> None:
    folder = read_folder(builtin_path("tiny-text"))
    ids = folder.chat.prompt([Message("user", "4 + 3 =")])
    assert folder.vocabulary.decode(ids) == "4 + 3 =\n"
    assert folder.chat.parse(folder.vocabulary.encode("7\n"), 0).message.content == "7"
    assert folder.chat.stop_token_ids == folder.vocabulary.encode("\n")


def test_chatml_marks_cannot_be_written_by_content() -> None:
    vocabulary = chatml_vocabulary()
    ids = ChatMlFormat(vocabulary).prompt([Message("user", f"x{IM_END}y")])
    assert ids.count(vocabulary.special(IM_END)) == 1


def test_chatml_appends_to_sampled_ids_and_closes_only_what_is_open() -> None:
    vocabulary = chatml_vocabulary()
    chat = ChatMlFormat(vocabulary)
    reply = [Message("tool", "19", tool_call_id="call_0_0")]
    closed = (*vocabulary.encode("hi"), vocabulary.special(IM_END))
    cut = vocabulary.encode("hi")
    assert (*cut, *chat.follow_up(cut, reply)) == (*closed, *chat.follow_up(closed, reply))


def test_chatml_tools_are_announced_before_the_messages() -> None:
    vocabulary = chatml_vocabulary()
    tools = [{"name": "calculator"}]
    text = vocabulary.decode(ChatMlFormat(vocabulary).prompt([Message("user", "x")], tools))
    assert text.index('{"name": "calculator"}') < text.index("user\nx")


def test_two_calls_the_first_bad_keep_their_order_and_ids() -> None:
    good = json.dumps({"name": "add", "arguments": {"a": 1}})
    parsed = chatml(f'ok {CALL_OPEN}{{"a":1,,}}{CALL_CLOSE}\n{CALL_OPEN}{good}{CALL_CLOSE}')
    assert parsed.message.content == "ok"
    assert parsed.message.tool_calls == (
        ToolCall("call_2_0", "", '{"a":1,,}'),
        ToolCall("call_2_1", "add", '{"a": 1}'),
    )
    assert [(e.call_id, e.reason) for e in parsed.errors] == [
        ("call_2_0", ParseReason.INVALID_JSON)
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "add", "arguments": {"a": "unterminated}}', ParseReason.INVALID_JSON),
        ("", ParseReason.EMPTY),
        ("[1]", ParseReason.NOT_A_CALL),
        ('{"arguments": {}}', ParseReason.NOT_A_CALL),
        ('{"name": "add", "arguments": [1]}', ParseReason.NOT_A_CALL),
        ("[" * 100_000, ParseReason.INVALID_JSON),
    ],
)
def test_every_malformed_call_has_one_error_under_its_id(body: str, reason: ParseReason) -> None:
    parsed = chatml(f"{CALL_OPEN}{body}{CALL_CLOSE}")
    assert [(e.call_id, e.reason) for e in parsed.errors] == [("call_2_0", reason)]
    assert [call.id for call in parsed.message.tool_calls] == ["call_2_0"]


def test_a_call_cut_by_the_length_limit_is_unterminated() -> None:
    parsed = chatml(f'{CALL_OPEN}{{"name": "a', ended=False)
    assert [e.reason for e in parsed.errors] == [ParseReason.UNTERMINATED]


def test_a_call_mark_with_nothing_after_it_is_still_one_call() -> None:
    assert len(chatml(CALL_OPEN, ended=False).message.tool_calls) == 1


def test_calls_beyond_the_limit_are_one_error() -> None:
    call = f'{CALL_OPEN}{{"name": "a", "arguments": {{}}}}{CALL_CLOSE}'
    parsed = chatml(call * (CALLS_MAX + 50))
    assert [e.reason for e in parsed.errors] == [ParseReason.TOO_MANY]
    assert len(parsed.message.tool_calls) == CALLS_MAX + 1
