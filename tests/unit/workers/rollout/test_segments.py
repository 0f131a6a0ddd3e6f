"""F2: a history that is written anew, by the environment or by the template, opens a segment."""

from dataclasses import replace

import pytest

from domain.states import End
from domain.wire import JournalTurn
from tests.unit.workers.rollout.builders import (
    CHAT,
    Record,
    ids,
    limits,
    record,
    reply,
    sampled,
    text,
    tool,
    user,
)
from venusrl.env.messages import Message, ToolCall
from venusrl.env.wire import BadRecord
from workers.models.char_chat import CharFormat
from workers.models.reasoning import Reasoning
from workers.rollout.episode import Ending, Episode

THINKING: CharFormat = replace(CHAT, reasoning=Reasoning("^", "=", is_dropped=True))


def rewrite(turn: int, *messages: Record) -> JournalTurn:
    """A new history instead of a reply."""
    return replace(reply(turn, *messages), is_rewrite=True)


def begun(chat: CharFormat = CHAT, keeps_history: bool = False, **limit: object) -> Episode:
    episode = Episode(chat, limits(**limit), keeps_history)
    assert episode.begin([user("1+1")]) is None
    return episode


def texts(episode: Episode) -> list[str]:
    return [text(segment.token_ids) for segment in episode.segments()]


def losses(episode: Episode) -> list[str]:
    """Per segment the text that is trained."""
    return [
        text([i for i, m in zip(s.token_ids, s.mask, strict=True) if m]) for s in episode.segments()
    ]


def turn(episode: Episode, answer: str, reaction: JournalTurn, version: int = 3) -> Ending | None:
    episode.prompt()
    assert episode.answer(sampled(answer, version=version)) is None
    return episode.observe(reaction)


def test_a_new_history_opens_a_segment_and_every_sampled_token_has_one_place() -> None:
    episode = begun()
    episode.prompt()
    assert turn(episode, "c1+1;", rewrite(0, user("2"), user("3"))) is None
    assert (episode.segment, episode.tokens) == (1, 6)
    assert texts(episode) == ["^1+1=c1+1;"], "nobody has answered the new history yet"
    assert text(episode.prompt()) == "^2=^3="
    episode.answer(sampled("a5;", version=4))
    assert episode.observe(reply(1, done=True)) == Ending(End.DONE)
    assert texts(episode) == ["^1+1=c1+1;", "^2=^3=a5;"]
    assert losses(episode) == ["c1+1;", "a5;"]
    assert [s.oldest_version for s in episode.segments()] == [3, 4]
    assert (episode.oldest_version, episode.sampled_tokens, episode.drift) == (3, 8, 0)
    first, last = episode.spans
    assert (first.segment, first.start, first.sampled_end, first.end) == (0, 5, 10, 10)
    assert (last.segment, last.start, last.sampled_end, last.end) == (1, 6, 9, 9)


def test_people_read_what_was_said_before_and_where_it_began_anew() -> None:
    episode = begun()
    turn(episode, "c1+1;", rewrite(0, user("2")))
    episode.prompt()
    episode.answer(sampled("a5;"))
    said = [message["content"] for message in episode.messages]
    assert said == ["1+1", "c1+1;", "2", "5"]
    assert episode.rewrites == (2,)


def test_a_new_history_may_hold_answers_and_calls_which_are_not_trained_there() -> None:
    call = ToolCall("x", "calculator", '{"expression": "1+1"}')
    asked = record(Message("assistant", "c1+1;", (call,)))
    episode = begun()
    turn(episode, "c1+1;", rewrite(0, user("9"), asked, tool("2", "x")))
    episode.prompt()
    episode.answer(sampled("a2;"))
    assert texts(episode)[1] == "^9=c1+1;r2;a2;"
    assert losses(episode) == ["c1+1;", "a2;"]


def test_a_new_history_that_leaves_no_room_ends_the_rollout_with_what_was_sampled() -> None:
    episode = begun(context_tokens=20)
    ending = turn(episode, "c1+1;", rewrite(0, user("1" * 40)))
    assert ending is not None
    assert ending.end is End.CONTEXT_OVERFLOW
    assert ending.cause is not None
    assert "20 of 20 tokens were left" in ending.cause
    assert texts(episode) == ["^1+1=c1+1;"]


def test_a_shorter_history_gives_its_room_back() -> None:
    episode = begun(context_tokens=16)
    assert episode.budget().max_tokens == 8
    assert turn(episode, "c1+1;", rewrite(0, user("2"))) is None
    assert (episode.tokens, episode.budget().max_tokens) == (3, 8)


def test_limits_of_turns_and_sampled_tokens_count_over_all_segments() -> None:
    episode = begun(max_turns=2)
    assert turn(episode, "c1+1;", rewrite(0, user("2"))) is None
    ending = turn(episode, "c1+1;", rewrite(1, user("2")))
    assert ending == Ending(End.TURN_LIMIT, "2 turns")
    episode = begun(max_tokens=8)
    turn(episode, "c1+1;", rewrite(0, user("2")))
    assert (episode.budget().max_tokens, episode.budget().limit) == (3, "max_tokens")


def test_an_empty_new_history_and_one_that_the_job_keeps_are_refused() -> None:
    with pytest.raises(BadRecord, match="renders to nothing"):
        turn(begun(), "c1+1;", rewrite(0, record(Message("system", ""))))
    with pytest.raises(BadRecord, match="keeps"):
        turn(begun(keeps_history=True), "c1+1;", rewrite(0, user("2")))


def test_a_template_that_drops_reasoning_opens_a_segment_at_the_users_next_message() -> None:
    episode = begun(THINKING)
    assert turn(episode, "^7=c1+1;", reply(0, tool("2"))) is None
    assert episode.segment == 0, "within tool calls the reasoning stays"
    assert turn(episode, "^8=a2;", reply(1, user("3"))) is None
    assert text(episode.prompt()) == "^1+1=c1+1;r2;a2;^3="
    episode.answer(sampled("a3;"))
    assert losses(episode) == ["^7=c1+1;^8=a2;", "a3;"]
    assert turn_ends(episode) == [(0, 16), (0, 22), (1, 22)]
    assert [m.get("reasoning") for m in episode.messages if m["role"] == "assistant"] == [
        "7",
        "8",
        None,
    ]
    assert episode.rewrites == (), "the conversation itself went on"


def turn_ends(episode: Episode) -> list[tuple[int, int]]:
    return [(span.segment, span.end) for span in episode.spans]


def test_without_reasoning_in_the_answers_the_segment_goes_on() -> None:
    episode = begun(THINKING)
    assert turn(episode, "a2;", reply(0, user("3"))) is None
    assert turn(episode, "a3;", reply(1, user("4"))) is None
    episode.prompt()
    assert (episode.segment, episode.drift) == (0, 0)
    assert texts(episode) == ["^1+1=a2;^3=a3;^4="]


def test_a_job_that_keeps_its_history_has_one_segment_with_all_reasoning() -> None:
    episode = begun(THINKING, keeps_history=True)
    turn(episode, "^7=a2;", reply(0, user("3")))
    turn(episode, "^8=a3;", reply(1, user("4")))
    episode.prompt()
    assert texts(episode) == ["^1+1=^7=a2;^3=^8=a3;^4="]


def test_a_dropped_history_that_fits_only_without_its_reasoning_goes_on() -> None:
    episode = begun(THINKING, context_tokens=20)
    assert turn(episode, "^77777=a2;", reply(0, user("33"))) is None
    assert text(episode.prompt()) == "^1+1=a2;^33="
    kept = begun(THINKING, keeps_history=True, context_tokens=19)
    ending = turn(kept, "^77777=a2;", reply(0, user("33")))
    assert ending is not None
    assert ending.end is End.CONTEXT_OVERFLOW


def test_a_successor_rebuilds_the_same_segments_from_the_journal() -> None:
    story = [("^7=c1+1;", reply(0, tool("2"))), ("^8=a2;", reply(1, user("3")))]
    story += [("a3;", rewrite(2, user("4"))), ("^1=a4;", reply(3, user("5")))]
    built = []
    for _ in range(2):
        episode = begun(THINKING)
        for answer, reaction in story:
            assert turn(episode, answer, reaction) is None
        built.append((episode.segments(), episode.spans, episode.messages, episode.prompt()))
    assert built[0] == built[1]
    assert len(built[0][0]) == 3
    assert built[0][3] == ids("^4=a4;^5=")
