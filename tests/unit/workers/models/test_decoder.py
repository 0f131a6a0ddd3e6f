"""The decoder on its own: causality, padding, positions, seeds."""

import torch

from tests.support.engines import decoder, reference_logprobs


def test_a_later_token_does_not_change_earlier_logits() -> None:
    model = decoder()
    short = torch.tensor([[10, 1, 2]])
    longer = torch.tensor([[10, 1, 2, 16, 5]])
    with torch.inference_mode():
        assert torch.allclose(model(short), model(longer)[:, :3], atol=1e-5)


def test_right_padding_does_not_change_real_positions() -> None:
    model = decoder()
    pad = 17
    with torch.inference_mode():
        padded = model(torch.tensor([[10, 1, 2, pad, pad], [10, 1, 2, 3, 4]]))
        alone = model(torch.tensor([[10, 1, 2]]))
    assert torch.allclose(padded[:1, :3], alone, atol=1e-5)


def test_order_of_tokens_changes_their_probabilities() -> None:
    model = decoder()
    assert not torch.allclose(
        reference_logprobs(model, (1, 2, 3)), reference_logprobs(model, (2, 1, 3)), atol=1e-3
    )


def test_equal_seeds_build_equal_models_and_tied_ones_share_the_head() -> None:
    first, second = decoder(3).state_dict(), decoder(3).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    tied = decoder(tied=True)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
