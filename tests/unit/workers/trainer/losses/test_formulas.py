"""Every token loss against an independent float64 reference in numpy, to 1e-6."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from workers.trainer.losses import (
    LOG_RATIO_MAX,
    Clip,
    Surrogate,
    anchor_logprobs,
    bounded_exp,
    clipped_surrogate,
    is_bounded,
    k3,
    predict,
    truncated_importance,
)

Array = NDArray[np.float64]
TOLERANCE = 1e-6


def draws(seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    new = -rng.gamma(2.0, 0.7, (5, 7))
    old = new + rng.normal(0, 0.4, (5, 7))
    return new, old, rng.normal(0, 1, (5, 1))


def tensors(*arrays: Array) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(a, dtype=torch.float64) for a in arrays)


def surrogate(new: Array, old: Array, advantage: Array, clip: Clip) -> Surrogate:
    new_t, old_t, advantage_t = tensors(new, old, advantage)
    return clipped_surrogate(new_t, old_t, advantage_t, clip)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28)], ids=["grpo", "dapo"])
def test_clipped_surrogate_equals_its_formula(low: float, high: float) -> None:
    new, old, advantage = draws()
    ratio = np.exp(new - old)
    expected = -np.minimum(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)
    got = surrogate(new, old, advantage, Clip(low, high))
    np.testing.assert_allclose(got.loss.numpy(), expected, atol=TOLERANCE, rtol=0)


def test_clipped_surrogate_in_single_precision_stays_within_the_tolerance() -> None:
    new, old, advantage = draws(3)
    ratio = np.exp(new - old)
    expected = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.28) * advantage)
    new_t, old_t, advantage_t = (t.float() for t in tensors(new, old, advantage))
    got = clipped_surrogate(new_t, old_t, advantage_t, Clip(0.2, 0.28))
    np.testing.assert_allclose(got.loss.numpy(), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_gradient_of_the_surrogate_is_minus_ratio_times_advantage_or_zero_when_clipped() -> None:
    new, old, advantage = draws(1)
    new_t, old_t, advantage_t = tensors(new, old, advantage)
    new_t.requires_grad_()
    got = clipped_surrogate(new_t, old_t, advantage_t, Clip(0.2, 0.28))
    got.loss.sum().backward()  # type: ignore[no-untyped-call]
    ratio = np.exp(new - old)
    clipped = ((advantage > 0) & (ratio > 1.28)) | ((advantage < 0) & (ratio < 0.8))
    expected = np.where(clipped, 0.0, -ratio * advantage)
    assert new_t.grad is not None
    np.testing.assert_allclose(new_t.grad.numpy(), expected, atol=TOLERANCE)
    np.testing.assert_array_equal(got.is_clipped.numpy(), clipped)


def test_dual_clip_bounds_the_loss_of_a_negative_advantage() -> None:
    new, old, advantage = torch.tensor([[0.0]]), torch.tensor([[-5.0]]), torch.tensor([[-1.0]])
    got = clipped_surrogate(new, old, advantage, Clip(0.2, 0.28, dual=3.0))
    assert got.loss.item() == pytest.approx(3.0)
    assert bool(got.is_clipped.item())


def test_dual_clip_leaves_a_positive_advantage_alone() -> None:
    new, old, advantage = draws(2)
    plain = surrogate(new, old, np.abs(advantage), Clip(0.2, 0.28))
    dual = surrogate(new, old, np.abs(advantage), Clip(0.2, 0.28, dual=3.0))
    assert torch.equal(plain.loss, dual.loss)


def test_truncated_importance_weight_equals_its_formula_and_carries_no_gradient() -> None:
    old, rollout, _ = draws(4)
    old_t, rollout_t = tensors(old, rollout)
    weight = truncated_importance(old_t.requires_grad_(), rollout_t, cap=2.0)
    expected = np.minimum(np.exp(old - rollout), 2.0)
    np.testing.assert_allclose(weight.numpy(), expected, atol=TOLERANCE)
    assert not weight.requires_grad


def test_k3_equals_its_formula_and_is_never_negative() -> None:
    sampled, other, _ = draws(6)
    got = k3(torch.tensor(sampled), torch.tensor(other)).numpy()
    delta = other - sampled
    np.testing.assert_allclose(got, np.exp(delta) - 1 - delta, atol=TOLERANCE)
    assert (got >= 0).all()


def test_anchor_is_recomputed_for_fresh_tokens_and_the_rollouts_for_older_ones() -> None:
    new = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    old = anchor_logprobs(new, torch.tensor([[-3.0, -4.0]]), torch.tensor([[0.0, 1.0]]))
    assert old.tolist() == [[-1.0, -4.0]]
    assert not old.requires_grad


@pytest.mark.parametrize("gap", [100.0, -100.0, 89.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_huge_log_ratio_gives_finite_losses_and_gradients(gap: float, dtype: torch.dtype) -> None:
    new = torch.full((1, 3), -1.0, dtype=dtype, requires_grad=True)
    other = torch.full((1, 3), gap - 1.0, dtype=dtype)
    advantage = torch.tensor([[-1.0]], dtype=dtype)
    loss = clipped_surrogate(new, other, advantage, Clip(0.2, 0.28)).loss + k3(new, other)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert torch.isfinite(loss).all()
    assert torch.isfinite(new.grad).all()
    assert bool(is_bounded(other - new).all())


def test_bounded_exponential_is_the_exponential_inside_the_bound() -> None:
    inside = torch.linspace(-LOG_RATIO_MAX, LOG_RATIO_MAX, 41, dtype=torch.float64)
    assert torch.equal(bounded_exp(inside), inside.exp())
    assert not bool(is_bounded(inside).any())


def reference_logprobs(logits: Array, ids: list[int], temperature: float, top_p: float) -> Array:
    """Position by position, token by token, in plain numpy."""
    result = []
    for position, token in enumerate(ids[1:]):
        scaled = logits[position] / temperature
        p = np.exp(scaled - scaled.max())
        p /= p.sum()
        kept, mass = np.zeros(len(p), dtype=bool), 0.0
        for candidate in np.argsort(-p, kind="stable"):
            if mass >= top_p:
                break
            kept[candidate], mass = True, mass + p[candidate]
        kept[token] = True
        result.append(np.log(p[token] / p[kept].sum()))
    return np.array(result)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
def test_logprobs_are_those_of_the_distribution_really_sampled(
    temperature: float, top_p: float
) -> None:
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 2, (6, 11))
    ids = [3, 1, 4, 1, 5, 9]
    got = predict(torch.tensor(logits)[None], torch.tensor([ids]), temperature, top_p)
    expected = reference_logprobs(logits, ids, temperature, top_p)
    np.testing.assert_allclose(got.logprobs[0].numpy(), expected, atol=TOLERANCE)


def test_greedy_decoding_is_scored_at_temperature_one() -> None:
    logits = torch.randn(1, 4, 9, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[1, 2, 3, 4]])
    greedy, plain = predict(logits, ids, 0.0, 0.5), predict(logits, ids, 1.0, 1.0)
    assert torch.equal(greedy.logprobs, plain.logprobs)


def test_entropy_of_a_uniform_distribution_is_the_logarithm_of_its_size() -> None:
    got = predict(torch.zeros(1, 3, 8), torch.tensor([[0, 1, 2]]), 1.0, 1.0)
    assert got.entropy.tolist()[0] == pytest.approx([np.log(8)] * 2)


def test_entropy_is_finite_under_a_nucleus_and_sends_no_gradient() -> None:
    logits = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    got = predict(logits, torch.tensor([[0, 1, 2]]), 0.7, 0.5)
    assert torch.isfinite(got.entropy).all()
    assert not got.entropy.requires_grad
