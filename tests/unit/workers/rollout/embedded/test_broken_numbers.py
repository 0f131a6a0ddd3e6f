"""What is not a number ends the turn that computed it and never reaches the pages of another."""

import pytest
import torch

from domain.engine import NAN_LOGITS, EngineRefused, Finish, GenResult, RequestId
from tests.support.engines import CHARACTERS, decoder, reference_logprobs, request
from workers.models.vocab import char_vocabulary
from workers.rollout.embedded import passes
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.keys import KeySizes
from workers.rollout.embedded.packing import pack

BROKEN = 17
"""The token whose embedding is not a number; the model samples it in none of these turns."""

MODEL = decoder()
STATE = {name: tensor.clone() for name, tensor in MODEL.state_dict().items()}
STATE["model.embed_tokens.weight"][BROKEN] = float("nan")
PACKED = pack(MODEL.config, STATE, torch.device("cpu"))


def core_of(pages: int) -> Core:
    vocabulary, sizes = char_vocabulary(CHARACTERS), KeySizes(pages)
    return Core(PACKED, vocabulary, 2, sizes, version=0, weights_sha="v0", clock=lambda: 0.0)


def submit(core: Core, name: str, ids: tuple[int, ...], answers: dict[str, GenResult]) -> None:
    def deliver(outcome: GenResult | EngineRefused) -> None:
        assert isinstance(outcome, GenResult)
        answers[name] = outcome

    core.submit(request(name, ids, max_tokens=12, temperature=0.0, rank=len(answers)), deliver)


@pytest.mark.parametrize("is_aborted", [False, True])
@pytest.mark.parametrize("at", [0, 9, 21, 30, 39], ids=lambda at: f"token {at}")
def test_pages_of_a_broken_prompt_are_clean_for_the_next_turn(
    monkeypatch: pytest.MonkeyPatch, at: int, is_aborted: bool
) -> None:
    monkeypatch.setattr(passes, "PREFILL_CHUNK", 8)
    core = core_of(pages=8)
    answers: dict[str, GenResult] = {}
    ids = tuple(BROKEN if place == at else 1 + place % 3 for place in range(40))
    submit(core, "broken", ids, answers)
    for _ in range(1 + at // 8):
        core.step()
    if is_aborted:
        core.abort([RequestId("req_broken")], "aborted")
    while core.active:
        core.step()
    if not is_aborted:
        assert (answers["broken"].finish, answers["broken"].error) == (Finish.ERROR, NAN_LOGITS)
        assert answers["broken"].token_ids == ()
    assert all(
        layer[: core.keys.arena.spill_page].isfinite().all() for layer in core.keys.arena.layers
    )
    for name, length in (("next", 3), ("long", 40)):
        clean = tuple(1 + place % 4 for place in range(length))
        submit(core, name, clean, answers)
        while core.active or core.waiting:
            core.step()
        result = answers[name]
        expected = reference_logprobs(MODEL, clean + result.token_ids)[length - 1 :]
        assert result.finish is Finish.LENGTH
        assert torch.allclose(torch.tensor(result.logprobs), expected, atol=1e-5, rtol=0)


def test_a_broken_prompt_beside_a_sound_one_that_shares_its_beginning_ends_alone() -> None:
    core = core_of(pages=16)
    answers: dict[str, GenResult] = {}
    shared = tuple(1 + place % 3 for place in range(32))
    submit(core, "broken", (*shared, BROKEN, 2, 2), answers)
    submit(core, "sound", (*shared, 2, 2), answers)
    while core.active or core.waiting:
        core.step()
    assert answers["broken"].error == NAN_LOGITS
    sound = answers["sound"]
    expected = reference_logprobs(MODEL, (*shared, 2, 2, *sound.token_ids))[33:]
    assert torch.allclose(torch.tensor(sound.logprobs), expected, atol=1e-5, rtol=0)
