"""The decoder over pages of keys and values: prefill of chunks, one decode step, scoring of a probe.

The arithmetic is that of `workers/models/decoder.py` over packed weights (`packing.py`); keys and
values are stored and attended to by the replaceable call of `attention.py`. Shapes: B rows, S new
tokens of each, H query heads, K key heads, D head width.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from workers.rollout.embedded.adapters import AdaptedLayer, AdaptedRows, PackedAdapter, add
from workers.rollout.embedded.arena import (
    PAGE_TOKENS,
    ArenaShape,
    KvArena,
    PagedBatch,
    paged_batch,
)
from workers.rollout.embedded.attention import Attention, GatherAttention, Plan
from workers.rollout.embedded.packing import PackedLayer, PackedModel


def arena_shape(model: PackedModel) -> ArenaShape:
    """What one token of this model takes."""
    config = model.config
    return ArenaShape(
        config.num_hidden_layers, config.num_key_value_heads, config.head_dim, model.dtype
    )


def decode(
    model: PackedModel,
    attention: Attention,
    batch: PagedBatch,
    tokens: Tensor,
    adapted: Sequence[AdaptedRows] = (),
) -> Tensor:
    """One token for each of B rows: float32 logits [B, vocab]; those of padding mean nothing."""
    return _head(_hidden(model, attention, batch, tokens[:, None], adapted)[:, 0], model)


def prefill(
    model: PackedModel,
    attention: Attention,
    batch: PagedBatch,
    tokens: Tensor,
    adapted: Sequence[AdaptedRows] = (),
) -> Tensor:
    """Store keys and values of a chunk [B, S]; returns hidden states [B, S, width].

    Keys before the chunk must be in the rows' pages already.
    """
    return _hidden(model, attention, batch, tokens, adapted)


def score(
    model: PackedModel, token_ids: tuple[int, ...], adapter: PackedAdapter | None = None
) -> Tensor:
    """Log-probability of each id after the first, over pages of its own (temperature 1)."""
    adapted = () if adapter is None else (AdaptedRows(adapter, None),)
    count = -(-len(token_ids) // PAGE_TOKENS)
    arena = KvArena(arena_shape(model), count, model.device)
    positions = np.arange(len(token_ids), dtype=np.int64)[None]
    tables = np.arange(count, dtype=np.int64)[None]
    batch = paged_batch(arena, tables, positions, np.ones_like(positions, dtype=np.bool_))
    tokens = torch.tensor([token_ids], device=model.device)
    hidden = _hidden(model, GatherAttention(arena), batch, tokens, adapted)
    log_probs = torch.log_softmax(_head(hidden[0, :-1], model), dim=-1)
    return log_probs.gather(-1, tokens[0, 1:, None]).squeeze(-1)


def _hidden(
    model: PackedModel,
    attention: Attention,
    batch: PagedBatch,
    tokens: Tensor,
    adapted: Sequence[AdaptedRows],
) -> Tensor:
    config, eps = model.config, model.config.rms_norm_eps
    shape = (*tokens.shape, config.num_attention_heads + 2 * config.num_key_value_heads, -1)
    plan = attention.plan(batch)
    angles = _angles(model, batch.positions)
    x = functional.embedding(tokens, model.embedding)
    for at, layer in enumerate(model.layers):
        added = [(one.adapter.layers[at], one.rows) for one in adapted]
        normed = functional.rms_norm(x, x.shape[-1:], layer.attention_norm, eps)
        qkv = functional.linear(normed, layer.qkv, layer.qkv_bias)
        qkv = add(qkv, normed, [(one.qkv, rows) for one, rows in added])
        turned = _turn(qkv.view(shape), layer, angles, eps)
        mixed = _attend(attention, at, turned, config.num_attention_heads, plan)
        out = functional.linear(mixed, layer.out, layer.out_bias)
        x = x + add(out, mixed, [(one.out, rows) for one, rows in added])
        x = x + _feed_forward(x, layer, eps, added)
    return x


def _angles(model: PackedModel, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Factors [B, S, H + 2K, D] of every number of query, key and value, and of its partner.

    Attention's scale is in the factors of queries; values are left as they are.
    """
    cos, sin = model.cos[positions].unsqueeze(2), model.sin[positions].unsqueeze(2)
    own = torch.addcmul(model.unturned, cos, model.turned)
    return own.to(model.dtype), (sin * model.turned).to(model.dtype)


def _turn(qkv: Tensor, layer: PackedLayer, angles: tuple[Tensor, Tensor], eps: float) -> Tensor:
    """Rotate queries and keys [B, S, H + 2K, D]; normalise their heads first where the model does."""
    if layer.head_norm is not None:
        count, width = layer.head_norm.shape
        turned = qkv[..., :count, :]
        qkv[..., :count, :] = functional.rms_norm(turned, (width,), None, eps) * layer.head_norm
    own, partner = angles
    return torch.addcmul(qkv * own, qkv.roll(qkv.shape[-1] // 2, -1), partner)


def _attend(attention: Attention, at: int, qkv: Tensor, heads: int, plan: Plan) -> Tensor:
    """Mixed values [B, S, H * D] of the new tokens."""
    query, fresh = qkv[:, :, :heads].transpose(1, 2), qkv[:, :, heads:]
    mixed = attention.attend(at, query, fresh, plan).transpose(1, 2)
    return mixed.reshape(*qkv.shape[:2], -1)


def _feed_forward(
    x: Tensor, layer: PackedLayer, eps: float, added: Sequence[tuple[AdaptedLayer, Tensor | None]]
) -> Tensor:
    normed = functional.rms_norm(x, x.shape[-1:], layer.mlp_norm, eps)
    gate_up = functional.linear(normed, layer.gate_up)
    gate, up = add(gate_up, normed, [(one.gate_up, rows) for one, rows in added]).chunk(2, dim=-1)
    inner = functional.silu(gate) * up
    return add(
        functional.linear(inner, layer.down), inner, [(one.down, rows) for one, rows in added]
    )


def _head(x: Tensor, model: PackedModel) -> Tensor:
    normed = functional.rms_norm(x, x.shape[-1:], model.norm, model.config.rms_norm_eps)
    return functional.linear(normed.float(), model.head)
