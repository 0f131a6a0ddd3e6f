"""The token record and its ends: F1, F3, F4, F5 of the field faults."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest

from domain.states import End
from domain.trajectory import Segment
from tests.unit.workers.rollout.builders import (
    CHAT,
    ids,
    limits,
    record,
    reply,
    sampled,
    text,
    tool,
    user,
)
from venusrl.env.messages import Json, Message
from venusrl.env.wire import BadRecord
from workers.models.chat import ChatMlFormat, ParsedAnswer
from workers.models.chatml import chatml_vocabulary
from workers.rollout.episode import Ending, Episode, Intent
from workers.rollout.job_spec import RolloutLimits
from workers.rollout.token_record import Sampled, TokenBuffer


def begun(opening: str = "1+1", limit: RolloutLimits | None = None) -> Episode:
    episode = Episode(CHAT, limit or limits())
    assert episode.begin([user(opening)]) is None
    return episode


class MergingChat:
    """A format whose vocabulary merges `ab`: the same text has two id sequences."""

    tokens = ("ab", "a", "b", ";", "r", "u")
    stop_token_ids = (3,)

    def encode(self, content: str) -> tuple[int, ...]:
        found = []
        while content:
            number, piece = next((n, p) for n, p in enumerate(self.tokens) if content.startswith(p))
            found.append(number)
            content = content[len(piece) :]
        return tuple(found)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Json]] = ()
    ) -> tuple[int, ...]:
        return self.encode("".join(message.content for message in messages))

    def follow_up(self, sampled: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        return self.prompt(messages)

    def parse(self, sampled: Sequence[int], turn: int) -> ParsedAnswer:
        return ParsedAnswer(Message("assistant", "".join(self.tokens[i] for i in sampled)))

    drops_reasoning = False

    def without_reasoning(self, sampled: Sequence[int]) -> tuple[int, ...]:
        return tuple(sampled)


def test_the_split_form_of_a_merged_word_stays_as_it_was_sampled_over_three_turns() -> None:
    split = (1, 2, 3)
    assert MergingChat().encode("ab;") != split
    episode = Episode(MergingChat(), limits())
    episode.begin([user("u")])
    prompts = []
    for turn in range(3):
        prompts.append(episode.prompt())
        assert episode.answer(sampled(split)) is None
        assert episode.observe(reply(turn, tool("r"))) is None
    prompts.append(episode.prompt())
    for turn, (before, after) in enumerate(pairwise(prompts)):
        assert after[: len(before) + 3] == before + split, turn
    assert episode.segments()[0].token_ids == (5, *(1, 2, 3, 4) * 3)
    assert episode.drift == 0


def test_a_prompt_that_does_not_continue_the_last_turn_is_counted_and_has_no_loss() -> None:
    episode = begun()
    episode.answer(sampled("c1+1;"))
    episode.observe(reply(0, tool("2")))
    episode._record._buffers[0]._token_ids[0] += (
        1  # no code does this: the guard is for code to come
    )
    episode.prompt()
    assert episode.drift == 1
    assert not any(episode.segments()[0].mask)
    assert episode.segments()[0].oldest_version is None


def test_three_vectors_with_a_tool_turn_in_the_middle_where_padding_is_the_end_token() -> None:
    vocabulary = chatml_vocabulary()
    chat = ChatMlFormat(vocabulary)
    end = vocabulary.special("<|im_end|>")
    assert vocabulary.pad_id == end
    episode = Episode(chat, limits(context_tokens=400))
    episode.begin([user("hi")])
    opening = episode.tokens
    call = vocabulary.encode('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    first, last = (*call, end), (*vocabulary.encode("ok"), end)
    episode.answer(sampled(first, version=4, logprob=-0.25))
    episode.observe(reply(0, tool("2")))
    observation = episode.tokens - opening - len(first)
    episode.answer(sampled(last, version=5, logprob=-0.75))
    assert episode.observe(reply(1, done=True)) == Ending(End.DONE)
    segment = episode.segments()[0]
    assert segment.mask == (
        *(0,) * opening,
        *(1,) * len(first),
        *(0,) * observation,
        *(1,) * len(last),
    )
    assert segment.token_ids[-1] == end
    assert segment.mask[-1] == 1, "a sampled end token counts in the loss"
    assert [p for p, m in zip(segment.logprobs, segment.mask, strict=True) if not m] == [0.0] * (
        opening + observation
    )
    assert [v for v, m in zip(segment.versions, segment.mask, strict=True) if m] == (
        [4] * len(first) + [5] * len(last)
    )
    assert {v for v, m in zip(segment.versions, segment.mask, strict=True) if not m} == {-1}
    assert (segment.oldest_version, segment.newest_version) == (4, 5)


def test_spans_name_sampled_and_observed_tokens_of_each_turn() -> None:
    episode = begun("1+1")  # ^1+1= is 5 tokens
    episode.answer(Sampled(ids("c1+1;"), (-0.5,) * 5, (3,) * 5, "stop", 0.125))
    episode.observe(reply(0, tool("2")))
    episode.answer(sampled("a2;"))
    episode.observe(reply(1, done=True))
    first, last = episode.spans
    assert (first.start, first.sampled_end, first.end) == (5, 10, 13)
    assert (first.tool_calls, first.generate_s, first.tool_s) == (1, 0.125, 0.25)
    assert (last.start, last.sampled_end, last.end) == (13, 16, 16)
    assert text(episode.segments()[0].token_ids) == "^1+1=c1+1;r2;a2;"


def test_overflow_at_turn_three_is_decided_before_the_engine_and_names_the_message() -> None:
    episode = begun("1+1", limits(context_tokens=64))
    ending = None
    for turn in range(3):
        assert ending is None
        room = episode.budget()
        assert episode.tokens + room.max_tokens <= 64
        ending = episode.answer(sampled("c1+1;"))
        assert ending is None
        ending = episode.observe(reply(turn, tool("1" * 14, f"call_{turn}_0")))
    assert ending is not None
    assert ending.end is End.CONTEXT_OVERFLOW
    assert ending.cause is not None
    assert "the reply of turn 2" in ending.cause
    assert "tool, call call_2_0" in ending.cause
    assert "14 characters" in ending.cause
    assert episode.tokens <= 64


def test_a_message_of_seventy_thousand_characters_overflows_without_being_tokenised() -> None:
    class Counting(MergingChat):
        rendered = 0

        def prompt(
            self, messages: Sequence[Message], tools: Sequence[Mapping[str, Json]] = ()
        ) -> tuple[int, ...]:
            self.rendered += sum(len(message.content) for message in messages)
            return super().prompt(messages)

    chat = Counting()
    episode = Episode(chat, limits(context_tokens=64))
    episode.begin([user("u")])
    episode.answer(sampled((1, 3)))
    ending = episode.observe(reply(0, tool("r"), tool("a" * 70_000, "call_0_1")))
    assert ending is not None
    assert ending.end is End.CONTEXT_OVERFLOW
    assert "message 1 (tool, call call_0_1) has 70000 characters" in (ending.cause or "")
    assert chat.rendered == 1
    assert len(str(episode.messages[-1]["content"])) == 70_000, "people still see the message"


def test_an_opening_that_leaves_no_room_ends_before_any_token_is_sampled() -> None:
    episode = Episode(CHAT, limits(context_tokens=16))
    ending = episode.begin([user("1" * 14)])
    assert ending is not None
    assert (ending.end, episode.turns) == (End.CONTEXT_OVERFLOW, 0)


def test_an_opening_that_leaves_room_for_one_token_is_sampled() -> None:
    episode = Episode(CHAT, limits(context_tokens=16))
    assert episode.begin([user("1" * 13)]) is None
    assert episode.budget().max_tokens == 1


@pytest.mark.parametrize(
    ("limit", "cause"),
    [
        (limits(max_tokens_per_turn=4), "max_tokens_per_turn"),
        (limits(context_tokens=9), "context_tokens"),
        (limits(max_tokens=4), "max_tokens"),
    ],
)
def test_a_length_stop_is_truncated_and_names_the_limit(limit: RolloutLimits, cause: str) -> None:
    episode = begun("1+1", limit)
    assert episode.budget().max_tokens == 4
    assert episode.answer(sampled("a123", finish="length")) == Ending(End.TRUNCATED, cause)
    assert sum(episode.segments()[0].mask) == 4


def test_a_final_answer_that_ends_exactly_at_the_limit_is_done_and_not_truncated() -> None:
    episode = begun("1+1", limits(context_tokens=64, max_tokens_per_turn=64))
    episode.answer(sampled("c" + "1" * 20 + ";"))
    episode.observe(reply(0, tool("1" * 20)))  # 5 + 22 + 22 = 49
    answer = "a" + "1" * 13 + ";"
    assert episode.budget().max_tokens == len(answer)
    assert episode.answer(sampled(answer, finish="length")) is None, "its end token was sampled"
    assert episode.observe(reply(1, done=True)) == Ending(End.DONE)
    assert episode.tokens == 64
    assert episode.spans[-1].finish == "stop"


def test_the_context_is_not_checked_after_a_final_answer() -> None:
    episode = begun("1+1", limits(context_tokens=64))
    episode.answer(sampled("a2;"))
    assert episode.observe(reply(0, user("1" * 500), done=True)) == Ending(End.DONE)


def test_the_turn_limit_ends_after_the_environments_reply_to_the_last_turn() -> None:
    episode = begun("1+1", limits(max_turns=2))
    episode.answer(sampled("c1+1;"))
    assert episode.observe(reply(0, tool("2"))) is None
    episode.answer(sampled("c2+2;"))
    ending = episode.observe(reply(1, tool("4", "call_1_0")))
    assert ending == Ending(End.TURN_LIMIT, "2 turns")
    assert episode.messages[-1]["content"] == "4", "people see the last reply"
    assert episode.segments()[0].mask[-1] == 1, "nothing is rendered that nobody will read"


def test_a_spent_token_allowance_truncates_at_the_turn_boundary() -> None:
    episode = begun("1+1", limits(max_tokens=5))
    episode.answer(sampled("c1+1;"))
    assert episode.observe(reply(0, tool("2"))) == Ending(End.TRUNCATED, "max_tokens")


CHATML = ChatMlFormat(chatml_vocabulary())


def chatml_intent(answer: str) -> Intent:
    episode = Episode(CHATML, limits(context_tokens=2000))
    episode.begin([user("hi")])
    token_ids = (*CHATML.vocabulary.encode(answer), *CHATML.stop_token_ids)
    assert episode.answer(sampled(token_ids)) is None, "a malformed call does not end the rollout"
    assert episode.intent is not None
    return episode.intent


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "f", "arguments": {"a":1,,}}', "invalid_json"),
        ('{"name": "f", "arguments": {"a": "x}', "invalid_json"),
        ("", "empty"),
        ("[1]", "not_a_call"),
    ],
)
def test_a_malformed_call_keeps_its_id_and_the_rollout_goes_on(body: str, reason: str) -> None:
    parsed = chatml_intent(f"<tool_call>{body}</tool_call>").parsed
    assert [call.id for call in parsed.message.tool_calls] == ["call_0_0"]
    assert [error.reason.value for error in parsed.errors] == [reason]


def test_two_calls_of_which_the_first_is_bad_await_two_replies_in_order() -> None:
    good = '{"name": "f", "arguments": {"a": 1}}'
    answer = f"<tool_call>{{,}}</tool_call><tool_call>{good}</tool_call>"
    parsed = chatml_intent(answer).parsed
    assert [call.id for call in parsed.message.tool_calls] == ["call_0_0", "call_0_1"]
    assert [error.call_id for error in parsed.errors] == ["call_0_0"]


def test_a_reply_to_another_turn_is_a_bad_record() -> None:
    episode = begun()
    episode.answer(sampled("c1+1;"))
    with pytest.raises(BadRecord):
        episode.observe(reply(1, tool("2")))


def test_a_message_of_an_unknown_role_is_a_bad_record() -> None:
    with pytest.raises(BadRecord):
        Episode(CHAT, limits()).begin([record(Message("user", "1")) | {"role": "root"}])


def test_masked_segments_keep_their_ids() -> None:
    buffer = TokenBuffer()
    buffer.append_context((1, 2))
    buffer.append_sampled(sampled((3,)))
    masked = buffer.segment(is_masked=True)
    assert masked == Segment((1, 2, 3), (0, 0, 0), (0.0, 0.0, 0.0), (-1, -1, -1))
