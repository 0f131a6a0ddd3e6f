"""Adapters of many tenants over one base model: packed like its matrices, applied row by row.

A forward pass gets the rows of every adapter of its batch; other rows are computed as if there were
none. Rows of one adapter share two small products. Where a batch has many adapters the products of all
rows are one batched product instead, over a stack with one adapter for each row (both forms after
Punica, Chen et al. 2023); the stack is kept as long as the batch stays the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from workers.models.adapter import Adapter, Pair
from workers.models.config import ModelConfig

QKV = ("q_proj", "k_proj", "v_proj")
GATE_UP = ("gate_proj", "up_proj")


STACK_ADAPTERS_MIN: Final = 2
"""Adapters in one batch from which the stack is faster than a pair of products for each (measured at
32 rows)."""

STACK_BYTES_MAX: Final = 1 << 28
"""Memory of a stack; above it every adapter has its own products."""


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """What an adapter adds to each packed matrix of a layer; the scale is in `b`.

    In a stack every matrix has the rows of its batch as first dimension.
    """

    qkv: Pair | None
    out: Pair | None
    gate_up: Pair | None
    down: Pair | None


@dataclass(frozen=True, slots=True, eq=False)
class PackedAdapter:
    """One adapter, ready to run."""

    sha: str
    layers: tuple[AdaptedLayer, ...]

    @property
    def size(self) -> int:
        """Bytes of all its matrices."""
        pairs = (pair for layer in self.layers for pair in _pairs(layer) if pair is not None)
        return sum(part.numel() * part.itemsize for pair in pairs for part in (pair.a, pair.b))


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


class Grouping:
    """Groups the rows of decode steps by adapter; the newest batch is remembered with its stack."""

    def __init__(self) -> None:
        self._of: tuple[PackedAdapter | None, ...] = ()
        self._groups: tuple[AdaptedRows, ...] = ()

    def groups(
        self, of: Sequence[PackedAdapter | None], device: torch.device
    ) -> tuple[AdaptedRows, ...]:
        """Groups of the rows that run with these adapters, one for each row."""
        if not any(of):
            self._of, self._groups = (), ()
            return ()
        key = tuple(of)
        # Compared by identity: two adapters are never equal, and their tensors must not be compared.
        if len(key) != len(self._of) or any(a is not b for a, b in zip(key, self._of, strict=True)):
            self._of, self._groups = key, _stacked(key, device)
        return self._groups


def by_adapter(of: Sequence[PackedAdapter | None], device: torch.device) -> tuple[AdaptedRows, ...]:
    """Rows of each adapter of a batch whose rows run with these."""
    members: dict[int, list[int]] = {}
    for row, one in enumerate(of):
        if one is not None:
            members.setdefault(id(one), []).append(row)
    adapters = {id(one): one for one in of if one is not None}
    return tuple(
        AdaptedRows(adapters[key], _index(places, len(of), device))
        for key, places in members.items()
    )


def _stacked(of: Sequence[PackedAdapter | None], device: torch.device) -> tuple[AdaptedRows, ...]:
    rows = [row for row, one in enumerate(of) if one is not None]
    adapters = [one for one in of if one is not None]
    is_worth_it = len({id(one) for one in adapters}) >= STACK_ADAPTERS_MIN
    if not is_worth_it or sum(one.size for one in adapters) > STACK_BYTES_MAX:
        return by_adapter(of, device)
    return (AdaptedRows(_stack(adapters), _index(rows, len(of), device)),)


def _index(rows: list[int], count: int, device: torch.device) -> Tensor | None:
    return None if len(rows) == count else torch.tensor(rows, device=device)


def _stack(adapters: Sequence[PackedAdapter]) -> PackedAdapter:
    """One adapter with a matrix for each row; smaller ranks are filled up with zeros."""
    layers = []
    for at in range(len(adapters[0].layers)):
        parts = zip(*(_pairs(one.layers[at]) for one in adapters), strict=True)
        layers.append(AdaptedLayer(*(_stack_pairs(pairs) for pairs in parts)))
    return PackedAdapter("", tuple(layers))


def _stack_pairs(pairs: tuple[Pair | None, ...]) -> Pair | None:
    some = [pair for pair in pairs if pair is not None]
    if not some:
        return None
    rank = max(len(pair.a) for pair in some)
    a = some[0].a.new_zeros((len(pairs), rank, some[0].a.shape[1]))
    b = some[0].b.new_zeros((len(pairs), some[0].b.shape[0], rank))
    for row, pair in enumerate(pairs):
        if pair is not None:
            a[row, : len(pair.a)] = pair.a
            b[row, :, : len(pair.a)] = pair.b
    return Pair(a, b)


def _pairs(layer: AdaptedLayer) -> tuple[Pair | None, ...]:
    return layer.qkv, layer.out, layer.gate_up, layer.down


def add(out: Tensor, x: Tensor, pairs: Sequence[tuple[Pair | None, Tensor | None]]) -> Tensor:
    """Add to `out` [B, S, outputs] what each pair makes of its rows of `x` [B, S, inputs]."""
    for pair, rows in pairs:
        if pair is None:
            continue
        chosen = x if rows is None else x[rows]
        if pair.a.dim() == 3:
            added = torch.bmm(torch.bmm(chosen, pair.a.mT), pair.b.mT)
        else:
            added = functional.linear(functional.linear(chosen, pair.a), pair.b)
        out = out + added if rows is None else out.index_add(0, rows, added)
    return out
