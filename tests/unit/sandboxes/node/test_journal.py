"""The journal: intents before effects, one reply a turn, nothing twice."""

from dataclasses import replace

import pytest

from sandboxes.node.journal import Intent, IntentRefused, Journal, Reply
from venusrl.env.messages import Message

PROMPT = (Message("user", "1+1"),)


def intent(turn: int = 0, tokens: tuple[int, ...] = (1, 2)) -> Intent:
    return Intent(turn, tokens, (-0.5,) * len(tokens), (3,) * len(tokens), "stop")


def reply(done: bool = False, state: object = None) -> Reply:
    return Reply(({"role": "tool", "content": "2"},), done, 0.25, state)  # type: ignore[arg-type]


def journal_with(turns: int, **last: bool) -> Journal:
    journal = Journal(PROMPT)
    for turn in range(turns):
        journal.intend(intent(turn))
        journal.record(reply(**(last if turn == turns - 1 else {})), ())
    return journal


def test_a_new_intent_is_journalled_without_a_reply() -> None:
    journal = Journal(PROMPT)
    assert journal.intend(intent())
    (turn,) = journal.turns
    assert (turn.token_ids, turn.versions, turn.replied) == ((1, 2), (3, 3), False)
    assert journal.is_waiting


def test_the_same_intent_again_is_known() -> None:
    journal = Journal(PROMPT)
    journal.intend(intent())
    assert not journal.intend(intent())
    journal.record(reply(), ())
    assert not journal.intend(intent())
    assert len(journal.turns) == 1


@pytest.mark.parametrize("is_replied", [False, True])
def test_other_tokens_for_a_known_turn_are_refused(is_replied: bool) -> None:
    journal = Journal(PROMPT)
    journal.intend(intent())
    if is_replied:
        journal.record(reply(), ())
    with pytest.raises(IntentRefused):
        journal.intend(intent(tokens=(1, 3)))


def test_a_turn_out_of_order_is_refused() -> None:
    with pytest.raises(IntentRefused):
        Journal(PROMPT).intend(intent(1))
    journal = Journal(PROMPT)
    journal.intend(intent())
    with pytest.raises(IntentRefused):
        journal.intend(intent(1))


def test_nothing_follows_the_end_of_the_episode() -> None:
    with pytest.raises(IntentRefused):
        journal_with(2, done=True).intend(intent(2))


def test_a_rewrite_replaces_the_conversation_that_a_restore_gets() -> None:
    journal = journal_with(1)
    journal.intend(intent(1))
    spoken = (Message("user", "anew"),)
    journal.record(replace(reply(), is_rewrite=True), spoken)
    assert journal.history == [*spoken]
    assert journal.turn(1).is_rewrite


def test_observation_and_snapshot_are_one_record() -> None:
    journal = Journal(PROMPT)
    journal.intend(intent())
    spoken = (Message("assistant", "?"), Message("tool", "2"))
    journal.record(reply(state={"n": 1}), spoken)
    assert journal.turn(0).replied
    assert journal.state == {"n": 1}
    assert journal.history == [*PROMPT, *spoken]
    assert journal.tool_s == 0.25
