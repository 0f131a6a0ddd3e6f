"""Stop strings: of any length that may be asked for, in what was sampled as text and in nothing else."""

from collections.abc import Sequence
from itertools import count

import pytest
import torch

from domain.engine import Finish, GenResult
from tests.support.engines import CHARACTERS, request
from tests.unit.workers.rollout.embedded.cores import Answers, drain, submit
from workers.models.config import ModelConfig
from workers.models.decoder import Decoder
from workers.models.vocab import VocabKind, Vocabulary, char_vocabulary
from workers.rollout.embedded import passes
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.keys import KeySizes
from workers.rollout.embedded.packing import pack

BYTE = Vocabulary(VocabKind.BYTE, "", ("<pad>", "<eos>"), "<pad>", "<pad>")
CHAR = char_vocabulary(CHARACTERS)


def sampled(
    monkeypatch: pytest.MonkeyPatch, vocabulary: Vocabulary, ids: Sequence[int], *stop: str
) -> GenResult:
    """A turn that draws these ids, unless it is stopped before."""
    model = Decoder(ModelConfig(vocabulary.size, 8, 8, 1, 1, 1024))
    packed = pack(model.config, model.state_dict(), torch.device("cpu"))
    places = count()

    def draw(*_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([ids[next(places)]]), torch.tensor([-1.0])

    monkeypatch.setattr(passes, "sample", draw)
    core = Core(packed, vocabulary, 1, KeySizes(64), version=0, weights_sha="v0", clock=lambda: 0.0)
    answers: Answers = {}
    submit(core, request(ids=(1,), max_tokens=len(ids), stop=stop), answers)
    drain(core)
    return answers["req_a"]


@pytest.mark.parametrize(
    ("vocabulary", "stop"),
    [(BYTE, "x" * 65), (BYTE, "\N{GRINNING FACE}" * 17), (BYTE, "é" * 200), (CHAR, "1" * 65)],
)
def test_a_stop_string_of_many_tokens_ends_a_turn(
    monkeypatch: pytest.MonkeyPatch, vocabulary: Vocabulary, stop: str
) -> None:
    ids = vocabulary.encode(f"0{stop}00")
    result = sampled(monkeypatch, vocabulary, ids, "never", stop)
    assert result.finish is Finish.STOP
    assert len(result.token_ids) == len(ids) - 2


@pytest.mark.parametrize("vocabulary", [BYTE, CHAR])
@pytest.mark.parametrize("stop", ["<", "eos", "<eos>", "1<"])
def test_names_of_special_tokens_are_no_text(
    monkeypatch: pytest.MonkeyPatch, vocabulary: Vocabulary, stop: str
) -> None:
    ids = (*vocabulary.encode("1"), vocabulary.special("<eos>"), *vocabulary.encode("1"))
    result = sampled(monkeypatch, vocabulary, ids, stop)
    assert (result.finish, result.token_ids) == (Finish.LENGTH, ids)


def test_text_on_both_sides_of_a_special_token_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = (*CHAR.encode("1"), CHAR.special("<eos>"), *CHAR.encode("2"))
    assert sampled(monkeypatch, CHAR, ids, "12").finish is Finish.LENGTH


def test_half_a_character_is_no_replacement_character(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = BYTE.encode("é1\N{REPLACEMENT CHARACTER}1")
    result = sampled(monkeypatch, BYTE, ids, "\N{REPLACEMENT CHARACTER}")
    assert result.finish is Finish.STOP
    assert result.token_ids == ids[:-1], "the character itself is text"
