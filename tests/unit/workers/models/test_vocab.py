"""Vocabularies: one text, one id sequence."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from workers.models.chatml import IM_END, chatml_vocabulary
from workers.models.vocab import char_vocabulary, read_vocab, write_vocab


@given(st.text())
def test_bytes_come_back_as_the_same_text(text: str) -> None:
    vocabulary = chatml_vocabulary()
    expected = text.encode("utf-8", errors="replace").decode()
    assert vocabulary.decode(vocabulary.encode(text)) == expected


@given(st.text(alphabet="01+=ab;"))
def test_characters_have_exactly_one_id_sequence(text: str) -> None:
    vocabulary = char_vocabulary("01+=ab;")
    ids = vocabulary.encode(text)
    assert len(ids) == len(text)
    assert vocabulary.decode(ids) == text


def test_the_spelling_of_a_special_token_in_a_text_is_plain_text() -> None:
    vocabulary = chatml_vocabulary()
    assert vocabulary.special(IM_END) not in vocabulary.encode(f"say {IM_END}")


def test_a_character_outside_the_vocabulary_becomes_unknown() -> None:
    vocabulary = char_vocabulary("ab")
    assert vocabulary.encode("aXb") == (0, vocabulary.special("<unk>"), 1)


def test_bytes_that_are_no_text_are_shown_replaced() -> None:
    assert chatml_vocabulary().decode((0xF0, 0xFF, 65)) == "\ufffd\ufffdA"


def test_the_end_token_may_be_the_padding_token() -> None:
    vocabulary = chatml_vocabulary()
    assert vocabulary.pad_id == vocabulary.special(IM_END)


def test_a_vocabulary_read_back_is_equal(tmp_path: Path) -> None:
    for vocabulary in (chatml_vocabulary(), char_vocabulary("\n ~é")):
        write_vocab(vocabulary, tmp_path / "vocab.json")
        assert read_vocab(tmp_path / "vocab.json") == vocabulary
