"""The streamed gradient equals the gradient of the whole batch in any order and any split."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from domain.trajectory import GroupPayload, Segment
from tests.unit.workers.trainer import builders
from workers.models.decoder import Decoder
from workers.trainer import batching
from workers.trainer.accumulate import GradientSum, Objective, token_terms
from workers.trainer.batching import NonFinite, Rows, micro_batches

STEP = 2
"""Tokens of version 1 are fresh, those of version 0 lag by one."""


def flat_gradient(model: Decoder) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()


def rows_of(payload: GroupPayload, dtype: torch.dtype = torch.float32) -> Rows:
    (rows,) = micro_batches(payload, STEP, builders.PAD_ID, 64, dtype)
    return rows


def one_shot(
    model: Decoder, groups: Sequence[GroupPayload], objective: Objective, dtype: torch.dtype
) -> Tensor:
    """Mean over all sampled tokens of a batch whose rows are never padded or split: one graph."""
    model.zero_grad()
    losses, tokens = [], 0.0
    for payload in groups:
        for member in payload.members:
            terms_rows = rows_of(replace(payload, members=(member,)), dtype)
            losses.append(token_terms(model, terms_rows, objective).loss.sum())
            tokens += terms_rows.mask.sum().item()
    (torch.stack(losses).sum() / tokens).backward()  # type: ignore[no-untyped-call]
    return flat_gradient(model)


def streamed(
    model: Decoder, groups: Sequence[GroupPayload], objective: Objective
) -> tuple[Tensor, float]:
    total = GradientSum(model, objective, builders.PAD_ID)
    total.clear()
    for payload in groups:
        total.add(payload, STEP)
    tokens = total.tokens
    total.scale()
    loss = sum(c.meters.loss for c in total.contributions) / tokens
    return flat_gradient(model), loss


def relative(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


ORDERS = list(itertools.permutations(range(3)))
"""The six arrival orders of three groups."""


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["fp32", "fp64"]
)
@pytest.mark.parametrize("rows_max", [1, 3, 8], ids=["alone", "threes", "whole"])
@pytest.mark.parametrize("members", [8, 6], ids=["full", "shrunk to 6 of 8"])
def test_streamed_gradient_equals_the_one_shot_gradient_in_six_orders(
    dtype: torch.dtype,
    tolerance: float,
    rows_max: int,
    members: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = (members, 8, members)
    groups = [builders.group(i, m) for i, m in enumerate(sizes)]
    model, objective = builders.model(dtype=dtype), builders.objective()
    expected = one_shot(model, groups, objective, dtype)
    monkeypatch.setattr(batching, "MICRO_BATCH_TOKENS_MAX", rows_max * 32)
    for order in ORDERS:
        got, _ = streamed(model, [groups[i] for i in order], objective)
        assert relative(got, expected) < tolerance


@pytest.mark.parametrize("tokens", [0, 8, 10_000])
def test_rows_of_like_length_share_a_forward_and_the_gradient_is_the_same(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = builders.two_members((1, 40), (1.0, -1.0))
    model, objective = builders.model(dtype=torch.float64), builders.objective()
    expected = one_shot(model, [payload], objective, torch.float64)
    monkeypatch.setattr(batching, "PADDING_SHARE", 0.0)
    monkeypatch.setattr(batching, "PADDING_TOKENS", tokens)
    parts = list(micro_batches(payload, STEP, builders.PAD_ID, 64, torch.float64))
    assert [len(part.lengths) for part in parts] == ([2] if tokens == 10_000 else [1, 1])
    assert all(part.token_ids.shape[1] - max(part.lengths) < batching.PAD_TOKENS for part in parts)
    got, _ = streamed(model, [payload], objective)
    assert relative(got, expected) < 1e-10


@pytest.mark.parametrize("split", [(0,), (0, 1), (1, 0)], ids=["together", "apart", "swapped"])
def test_lengths_one_and_three_give_loss_one_half_for_every_split(split: tuple[int, ...]) -> None:
    whole = builders.two_members((1, 3), (1.0, -1.0))
    parts = [replace(whole, members=(whole.members[i],)) for i in split]
    groups = [whole] if len(split) == 1 else parts
    model = builders.model()
    # Fresh tokens: their ratio is 1, so the loss is -(1 * 1 + 3 * -1) / 4.
    fresh = [_with_version(g, STEP - 1) for g in groups]
    _, loss = streamed(model, fresh, builders.objective(cap=None))
    assert loss == pytest.approx(0.5, abs=1e-6)


def _with_version(payload: GroupPayload, version: int) -> GroupPayload:
    def stamped(segment: Segment) -> Segment:
        return replace(segment, versions=tuple(version if m else -1 for m in segment.mask))

    members = tuple(
        replace(m, segments=tuple(stamped(s) for s in m.segments)) for m in payload.members
    )
    return replace(payload, members=members)


def test_repeating_the_recorded_order_repeats_the_gradient_bit_for_bit() -> None:
    groups = [builders.group(i) for i in (2, 0, 1)]
    first, _ = streamed(builders.model(), groups, builders.objective())
    second, _ = streamed(builders.model(), groups, builders.objective())
    assert torch.equal(first, second)


def test_rebuilding_without_a_group_equals_never_having_had_it() -> None:
    model, objective = builders.model(), builders.objective()
    total = GradientSum(model, objective, builders.PAD_ID)
    for ordinal in (0, 1, 2):
        total.add(builders.group(ordinal), STEP)
    total.clear()
    for ordinal in (0, 2):
        total.add(builders.group(ordinal), STEP)
    rebuilt = flat_gradient(model).clone()
    fresh_model = builders.model()
    fresh = GradientSum(fresh_model, objective, builders.PAD_ID)
    for ordinal in (0, 2):
        fresh.add(builders.group(ordinal), STEP)
    assert torch.equal(rebuilt, flat_gradient(fresh_model))


def test_padding_and_foreign_tokens_have_no_loss_while_a_sampled_end_token_has() -> None:
    end = builders.PAD_ID  # pad_id == eos_id: lengths must decide, never the ids
    turns = Segment(
        token_ids=(1, 2, 5, end, 7, 8, 6, end),
        mask=(0, 0, 1, 1, 0, 0, 1, 1),
        logprobs=(0.0, 0.0, -1.0, -0.5, 0.0, 0.0, -2.0, -0.1),
        versions=(-1, -1, 1, 1, -1, -1, 1, 1),
    )
    payload = builders.two_members((1, 3), (1.0, -1.0))
    member = replace(payload.members[0], segments=(turns,))
    rows = rows_of(replace(payload, members=(member, payload.members[1])))
    assert rows.lengths == (5, 8)
    assert rows.token_ids[1].tolist() == [1, 2, 5, end, 7, 8, 6, end] + [end] * 8
    assert rows.mask[1].tolist() == [0, 1, 1, 0, 0, 1, 1] + [0] * 8
    terms = token_terms(builders.model(), rows, builders.objective())
    assert (terms.loss[1] != 0).tolist() == (rows.mask[1] > 0).tolist()


def test_padding_changes_no_log_probability_of_a_real_token() -> None:
    payload = builders.group(3)
    model, objective = builders.model(dtype=torch.float64), builders.objective()
    rows = rows_of(payload, torch.float64)
    together = token_terms(model, rows, objective).new
    for member in payload.members:
        index = rows.rollout_ids.index(member.rollout_id)
        ids = torch.tensor([member.segments[0].token_ids])
        alone = torch.log_softmax(model(ids)[:, :-1], dim=-1).gather(-1, ids[:, 1:, None])[0, :, 0]
        assert torch.allclose(together[index, : len(alone)], alone, atol=1e-10)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("field", ["reward", "advantage", "logprob"])
def test_a_non_finite_value_names_its_rollout(field: str, value: float) -> None:
    payload = builders.group(0)
    guilty = payload.members[3]
    if field == "logprob":
        segment = guilty.segments[0]
        bad = replace(segment, logprobs=(*segment.logprobs[:-1], value))
        guilty = replace(guilty, segments=(bad,))
    else:
        guilty = replace(guilty, **{field: value})  # type: ignore[arg-type]
    members = (*payload.members[:3], guilty, *payload.members[4:])
    total = GradientSum(builders.model(), builders.objective(), builders.PAD_ID)
    with pytest.raises(NonFinite) as caught:
        total.add(replace(payload, members=members), STEP)
    assert caught.value.rollout_id == guilty.rollout_id


def test_a_loss_that_overflows_names_its_rollout() -> None:
    payload = builders.group(0, versions=(0,))
    guilty = replace(payload.members[2], advantage=3e38)
    members = (*payload.members[:2], guilty, *payload.members[3:])
    total = GradientSum(builders.model(), builders.objective(), builders.PAD_ID)
    with pytest.raises(NonFinite, match=guilty.rollout_id):
        total.add(replace(payload, members=members), STEP)


def test_a_member_of_several_segments_counts_each_sampled_token_once() -> None:
    rng = random.Random(1)
    payload = builders.two_members((2, 4), (1.0, -1.0))
    more = (*payload.members[0].segments, builders.segment(rng, 3, 5))
    member = replace(payload.members[0], segments=more)
    total = GradientSum(builders.model(), builders.objective(), builders.PAD_ID)
    total.add(replace(payload, members=(member, payload.members[1])), STEP)
    assert total.tokens == 2 + 5 + 4


def test_a_penalty_pulls_towards_the_reference_and_vanishes_at_it() -> None:
    payload = builders.group(0)
    objective = builders.objective(kl_coef=0.5)
    rows = rows_of(payload)
    model, reference = builders.model(), builders.model()
    plain = token_terms(model, rows, builders.objective()).loss
    at_reference = token_terms(model, rows, objective, reference).loss
    away = token_terms(model, rows, objective, builders.model(seed=1)).loss
    assert torch.allclose(at_reference, plain, atol=1e-6)
    assert float((away - plain).detach().sum()) > 0
