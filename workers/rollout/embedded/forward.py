"""The decoder over a key-value cache: prefill of chunks, one decode step, scoring of a probe.

Weights are packed for speed: query, key and value in one matrix (queries pre-scaled), gate and up
in another. Packing happens at every weight update, for every tensor, the head included: nothing of
an old version can survive in a packed copy.

Cache layout: [layer, key|value, row, head, position, D]; position `context` of every row is a spill
place, written by padding and read by nobody. Running rows are rows 0..n-1, so that a decode step
reads views and copies nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from workers.models.config import ModelConfig
from workers.models.decoder import rope_tables, rotate

LENGTH_STEP: Final = 32
"""Attended length is rounded up to it: few distinct shapes, so kernels are planned once."""


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """Weights of one layer; `qkv` is [3 * width, width], `gate_up` [2 * intermediate, width]."""

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class PackedModel:
    """All weights of one policy version, ready to run, with the tables that depend on positions."""

    config: ModelConfig
    embedding: Tensor
    layers: tuple[PackedLayer, ...]
    norm: Tensor
    head: Tensor
    cos: Tensor
    sin: Tensor
    columns: Tensor
    """0..context-1: key positions, compared with query positions to make masks."""


def pack(config: ModelConfig, state: Mapping[str, Tensor], device: torch.device) -> PackedModel:
    """Pack a state dict; tied models take the head from the embedding."""

    def tensor(name: str) -> Tensor:
        return state[name].detach().to(device=device, dtype=torch.float32).clone()

    layers = []
    for at in range(config.num_hidden_layers):
        prefix = f"model.layers.{at}."
        query = tensor(f"{prefix}self_attn.q_proj.weight") * config.head_dim**-0.5
        key = tensor(f"{prefix}self_attn.k_proj.weight")
        value = tensor(f"{prefix}self_attn.v_proj.weight")
        gate = tensor(f"{prefix}mlp.gate_proj.weight")
        up = tensor(f"{prefix}mlp.up_proj.weight")
        layers.append(
            PackedLayer(
                attention_norm=tensor(f"{prefix}input_layernorm.weight"),
                qkv=torch.cat((query, key, value)),
                out=tensor(f"{prefix}self_attn.o_proj.weight"),
                mlp_norm=tensor(f"{prefix}post_attention_layernorm.weight"),
                gate_up=torch.cat((gate, up)),
                down=tensor(f"{prefix}mlp.down_proj.weight"),
            )
        )
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    context = config.max_position_embeddings
    cos, sin = rope_tables(config, context + 1)
    return PackedModel(
        config=config,
        embedding=tensor("model.embed_tokens.weight"),
        layers=tuple(layers),
        norm=tensor("model.norm.weight"),
        head=tensor(head),
        cos=cos.to(device),
        sin=sin.to(device),
        columns=torch.arange(context, device=device),
    )


def new_cache(config: ModelConfig, rows: int, device: torch.device) -> Tensor:
    """An empty cache of `rows` rows."""
    shape = (
        config.num_hidden_layers,
        2,
        rows,
        config.num_attention_heads,
        config.max_position_embeddings + 1,
        config.head_dim,
    )
    return torch.zeros(shape, dtype=torch.float32, device=device)


def attended(longest: int, context: int) -> int:
    """Rounded key length that covers positions 0..longest-1."""
    return min(-(-longest // LENGTH_STEP) * LENGTH_STEP, context)


def decode(
    model: PackedModel, cache: Tensor, tokens: Tensor, positions: Tensor, length: int
) -> Tensor:
    """One token for each of the first B rows: logits [B, vocab].

    `positions` [B] are where the tokens stand; a row whose position is `context` spills: its logits
    mean nothing and its cache stays as it was.
    """
    config = model.config
    batch, heads, width = tokens.shape[0], config.num_attention_heads, config.head_dim
    cos, sin = model.cos[positions].unsqueeze(1), model.sin[positions].unsqueeze(1)
    mask = _mask(model, positions, length)[:, None, None]
    rows = torch.arange(batch, device=tokens.device)
    x = functional.embedding(tokens, model.embedding)
    for layer, (keys, values) in zip(model.layers, cache, strict=True):
        normed = functional.rms_norm(x, x.shape[-1:], layer.attention_norm, config.rms_norm_eps)
        qkv = functional.linear(normed, layer.qkv).view(batch, 3 * heads, width)
        turned = rotate(qkv[:, : 2 * heads], cos, sin)
        keys[rows, :, positions] = turned[:, heads:]
        values[rows, :, positions] = qkv[:, 2 * heads :]
        query = turned[:, :heads].unsqueeze(2)
        scores = torch.matmul(query, keys[:batch, :, :length].transpose(-1, -2)).add_(mask)
        mixed = torch.matmul(torch.softmax(scores, dim=-1), values[:batch, :, :length])
        x = x + functional.linear(mixed.reshape(batch, heads * width), layer.out)
        x = _feed_forward(x, layer, config.rms_norm_eps)
    return _head(x, model)


def prefill(
    model: PackedModel,
    cache: Tensor,
    rows: Tensor,
    tokens: Tensor,
    positions: Tensor,
) -> Tensor:
    """Write keys and values of a chunk [B, S] into `rows`; returns hidden states [B, S, width].

    Padding stands at position `context`. Keys before the chunk must be in the cache already.
    """
    config = model.config
    context = config.max_position_embeddings
    batch, chunk = tokens.shape
    heads, width = config.num_attention_heads, config.head_dim
    seen = torch.where(positions < context, positions, torch.zeros_like(positions))
    length = attended(int(seen.max()) + 1, context)
    mask = _mask(model, seen, length)[:, None]
    cos, sin = model.cos[positions].unsqueeze(2), model.sin[positions].unsqueeze(2)
    x = functional.embedding(tokens, model.embedding)
    for layer, (keys, values) in zip(model.layers, cache, strict=True):
        normed = functional.rms_norm(x, x.shape[-1:], layer.attention_norm, config.rms_norm_eps)
        qkv = functional.linear(normed, layer.qkv).view(batch, chunk, 3 * heads, width)
        turned = rotate(qkv[:, :, : 2 * heads], cos, sin)
        keys[rows[:, None], :, positions] = turned[:, :, heads:]
        values[rows[:, None], :, positions] = qkv[:, :, 2 * heads :]
        query = turned[:, :, :heads].transpose(1, 2)
        scores = torch.matmul(query, keys[rows, :, :length].transpose(-1, -2)).add_(mask)
        mixed = torch.matmul(torch.softmax(scores, dim=-1), values[rows, :, :length])
        flat = mixed.transpose(1, 2).reshape(batch, chunk, heads * width)
        x = _feed_forward(x + functional.linear(flat, layer.out), layer, config.rms_norm_eps)
    return x


def score(model: PackedModel, token_ids: tuple[int, ...]) -> Tensor:
    """Log-probability of each id after the first, over a cache of its own (temperature 1)."""
    device = model.embedding.device
    cache = new_cache(model.config, 1, device)
    tokens = torch.tensor([token_ids], device=device)
    positions = torch.arange(len(token_ids), device=device)[None]
    row = torch.zeros(1, dtype=torch.long, device=device)
    hidden = prefill(model, cache, row, tokens, positions)
    log_probs = torch.log_softmax(_head(hidden[0, :-1], model), dim=-1)
    return log_probs.gather(-1, tokens[0, 1:, None]).squeeze(-1)


def _mask(model: PackedModel, positions: Tensor, length: int) -> Tensor:
    """0 where a query at `positions` [...] sees a key, minus infinity elsewhere: [..., length]."""
    hidden = model.columns[:length] > positions[..., None]
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, float("-inf"))


def _feed_forward(x: Tensor, layer: PackedLayer, eps: float) -> Tensor:
    normed = functional.rms_norm(x, x.shape[-1:], layer.mlp_norm, eps)
    gate, up = functional.linear(normed, layer.gate_up).chunk(2, dim=-1)
    return x + functional.linear(functional.silu(gate) * up, layer.down)


def _head(x: Tensor, model: PackedModel) -> Tensor:
    normed = functional.rms_norm(x, x.shape[-1:], model.norm, model.config.rms_norm_eps)
    return functional.linear(normed, model.head)
