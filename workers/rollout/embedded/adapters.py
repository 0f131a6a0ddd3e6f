"""Adapters of many tenants over one base model: packed like its matrices, applied row by row.

A forward pass gets the rows of every adapter of its batch; other rows are computed as if there were
none. Rows of one adapter share two small products (the grouped form of Punica's, Chen et al. 2023).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from workers.models.adapter import Adapter, Pair
from workers.models.config import ModelConfig

QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """What an adapter adds to each packed matrix of a layer; the scale is in `b`."""

    qkv: Pair | None
    out: Pair | None
    gate_up: Pair | None
    down: Pair | None


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """One adapter, ready to run."""

    sha: str
    layers: tuple[AdaptedLayer, ...]


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """Rows of a batch that run with one adapter; None stands for all rows."""

    adapter: PackedAdapter
    rows: Tensor | None


def pack_adapter(
    adapter: Adapter, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> PackedAdapter:
    """Pack an adapter beside a base model's weights."""
    widths = {
        "q_proj": config.query_width,
        "k_proj": config.key_width,
        "v_proj": config.key_width,
        "o_proj": config.hidden_size,
        "gate_proj": config.intermediate_size,
        "up_proj": config.intermediate_size,
        "down_proj": config.hidden_size,
    }

    def packed(pairs: Mapping[str, Pair], *targets: str) -> Pair | None:
        """Inputs stacked, outputs on the diagonal: the projections of a packed matrix are one."""
        if not any(target in pairs for target in targets):
            return None
        a = torch.cat([pairs[target].a for target in targets if target in pairs])
        b = a.new_zeros((sum(widths[target] for target in targets), len(a)))
        row = column = 0
        for target in targets:
            if target in pairs:
                part = pairs[target].b * adapter.scale
                b[row : row + part.shape[0], column : column + part.shape[1]] = part
                column += part.shape[1]
            row += widths[target]
        return Pair(a.to(device, dtype), b.to(device, dtype))

    return PackedAdapter(
        adapter.sha,
        tuple(
            AdaptedLayer(
                packed(pairs, *QKV),
                packed(pairs, "o_proj"),
                packed(pairs, *GATE_UP),
                packed(pairs, "down_proj"),
            )
            for pairs in adapter.layers
        ),
    )


def add(out: Tensor, x: Tensor, pairs: Sequence[tuple[Pair | None, Tensor | None]]) -> Tensor:
    """Add to `out` [B, S, outputs] what each pair makes of its rows of `x` [B, S, inputs]."""
    for pair, rows in pairs:
        if pair is None:
            continue
        if rows is None:
            out = out + functional.linear(functional.linear(x, pair.a), pair.b)
        else:
            added = functional.linear(functional.linear(x[rows], pair.a), pair.b)
            out = out.index_add(0, rows, added)
    return out
