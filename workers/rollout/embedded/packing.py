"""Weights of one policy version, packed for speed.

Query, key and value stand in one matrix, gate and up in another. Packing happens at every weight
update, for every tensor, the head included: nothing of an old version can survive in a packed copy.
The head is kept in float32 whatever the type of the other weights, so that log-probabilities always
come from float32 logits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.models.config import ModelConfig
from workers.models.decoder import rope_tables
from workers.models.folder import EMBEDDING, HEAD


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """Weights of one layer; `qkv` is [query + 2 * key width, width], `gate_up` [2 * inner, width]."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norm: Tensor | None
    """[heads + kv_heads, D]: scale of every query head, then of every key head."""
    out: Tensor
    out_bias: Tensor | None
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
    """[context, D]; the first half is negated, as the turned pairs want it."""
    turned: Tensor
    """[heads + 2 * kv_heads, 1]: attention's scale for queries, 1 for keys, 0 for values."""
    unturned: Tensor
    """[heads + 2 * kv_heads, 1]: 1 for values, which pass as they are."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights, of hidden states, and of keys and values."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device


def pack(
    config: ModelConfig,
    state: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> PackedModel:
    """Pack a state dict; tied models take the head from the embedding."""

    def tensor(name: str, kind: torch.dtype = dtype) -> Tensor:
        return state[name].detach().to(device=device, dtype=kind, copy=True)

    heads, shared = config.num_attention_heads, config.num_key_value_heads
    cos, sin = rope_tables(config, config.max_position_embeddings)
    half = config.head_dim // 2
    sin[:, :half].neg_()
    parts = torch.tensor([heads, shared, shared])
    kinds = torch.tensor([[config.head_dim**-0.5, 0.0], [1.0, 0.0], [0.0, 1.0]])
    factors = kinds.repeat_interleave(parts, dim=0).to(device)
    return PackedModel(
        config=config,
        embedding=tensor(EMBEDDING),
        layers=tuple(
            _layer(config, f"model.layers.{at}.", tensor) for at in range(config.num_hidden_layers)
        ),
        norm=tensor("model.norm.weight"),
        head=tensor(EMBEDDING if config.tie_word_embeddings else HEAD, torch.float32),
        cos=cos.to(device),
        sin=sin.to(device),
        turned=factors[:, :1],
        unturned=factors[:, 1:],
    )


def _layer(config: ModelConfig, prefix: str, tensor: Callable[[str], Tensor]) -> PackedLayer:
    attention = f"{prefix}self_attn."
    qkv = [f"{attention}{part}_proj" for part in "qkv"]
    head_norm = None
    if config.has_head_norm:
        query = tensor(f"{attention}q_norm.weight").expand(config.num_attention_heads, -1)
        key = tensor(f"{attention}k_norm.weight").expand(config.num_key_value_heads, -1)
        head_norm = torch.cat((query, key))
    return PackedLayer(
        attention_norm=tensor(f"{prefix}input_layernorm.weight"),
        qkv=torch.cat([tensor(f"{name}.weight") for name in qkv]),
        qkv_bias=(
            torch.cat([tensor(f"{name}.bias") for name in qkv]) if config.has_qkv_bias else None
        ),
        head_norm=head_norm,
        out=tensor(f"{attention}o_proj.weight"),
        out_bias=tensor(f"{attention}o_proj.bias") if config.has_out_bias else None,
        mlp_norm=tensor(f"{prefix}post_attention_layernorm.weight"),
        gate_up=torch.cat(
            [tensor(f"{prefix}mlp.gate_proj.weight"), tensor(f"{prefix}mlp.up_proj.weight")]
        ),
        down=tensor(f"{prefix}mlp.down_proj.weight"),
    )
