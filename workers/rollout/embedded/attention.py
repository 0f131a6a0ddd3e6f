"""Attention of new tokens over the pages of their rows; the call is replaceable.

What depends on the batch alone is worked out once a forward pass, in a plan that all layers share.
Contexts of very different lengths run together, so on a CPU a batch is attended to in parts, each as
long as its longest row (`parts.py`).
Two adapters: `GatherAttention` copies the pages in use side by side and calls torch's scaled
dot-product attention on the copy; `KeptAttention` keeps that copy from one decode step to the next
and copies only pages that changed.

Query heads may share key heads; keys are never repeated for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from workers.rollout.embedded.arena import PAGE_TOKENS, KvArena, PagedBatch
from workers.rollout.embedded.parts import Part, parts_of

KEPT_BYTES_MAX: Final = 1 << 30
"""Memory that a kept copy may take beside the arena; above it pages are gathered every step."""

KEPT_GROWTH: Final = 1.5
"""It grows by half at once, because growing it copies all pages anew."""


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A part with what its calls need."""

    part: Part
    mask: Tensor | None
    """0 where a query sees a key, minus infinity elsewhere: [rows, 1, count, length]; None: all do."""
    gather: Tensor | None
    """Flat places of all blocks of its rows: [2 * rows * kv_heads * P]; None: the copy is kept."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every layer of one forward pass does with its pages."""

    batch: PagedBatch
    write: Tensor
    """Flat places of the new tokens in a layer: [B * S * 2 * kv_heads]."""
    parts: tuple[PlannedPart, ...]
    kept: Tensor | None = None
    """Flat places of the new tokens in the kept copy of a layer: [B * 2 * kv_heads]."""


class Attention(Protocol):
    """Stores the keys and values of new tokens and mixes the values that their queries see."""

    def plan(self, batch: PagedBatch) -> Plan:
        """Work out a batch, once for all layers. Every plan is used, layer by layer, at once."""
        ...

    def attend(self, at: int, query: Tensor, fresh: Tensor, plan: Plan) -> Tensor:
        """Scaled queries [B, heads, S, D] of layer `at` -> mixed values of the same shape.

        `fresh` [B, S, 2 * kv_heads, D] are the new tokens' keys, then their values.
        """
        ...


class GatherAttention:
    """Copies the pages in use side by side for every call."""

    def __init__(self, arena: KvArena) -> None:
        self.arena = arena
        self._buffer = torch.empty(0, dtype=arena.shape.dtype, device=arena.device)
        self._head = torch.arange(2 * arena.shape.kv_heads, device=arena.device)
        self._columns = torch.arange(0, device=arena.device)

    def plan(self, batch: PagedBatch) -> Plan:
        """Work out a batch."""
        self.arena.touch(batch.pages)
        parts = parts_of(batch, self.arena.shape)
        return Plan(
            batch,
            self._written(batch),
            tuple(
                PlannedPart(part, self._mask(batch, part), self._gathered(batch, part))
                for part in parts
            ),
        )

    def attend(self, at: int, query: Tensor, fresh: Tensor, plan: Plan) -> Tensor:
        """Write, then gather and attend, part by part."""
        layer, width = self.arena.layers[at], self.arena.shape.head_dim
        layer.view(-1, width).index_copy_(0, plan.write, fresh.reshape(-1, width))
        blocks = layer.view(-1, PAGE_TOKENS * width)

        def read(one: PlannedPart) -> tuple[Tensor, Tensor]:
            assert one.gather is not None
            copy = self._room(one.gather.numel() * blocks.shape[1]).view(-1, blocks.shape[1])
            torch.index_select(blocks, 0, one.gather, out=copy)
            rows, length = one.part.stop - one.part.start, one.part.length
            keys, values = copy.view(2, rows, layer.shape[2], -1, width)[..., :length, :]
            return keys, values

        return _joined(query, plan.parts, read)

    def _room(self, count: int) -> Tensor:
        """A buffer of `count` numbers. It only grows: a fresh one each time costs page faults."""
        if self._buffer.numel() < count:
            self._buffer = self._buffer.new_empty(count)
        return self._buffer[:count]

    def _written(self, batch: PagedBatch) -> Tensor:
        blocks = batch.pages[..., None] * len(self._head) + self._head
        return (blocks * PAGE_TOKENS + batch.offsets[..., None]).view(-1)

    def _gathered(self, batch: PagedBatch, part: Part) -> Tensor:
        tables = batch.tables[part.start : part.stop, : -(-part.length // PAGE_TOKENS)]
        return _blocks(tables, self.arena.shape.kv_heads).reshape(-1)

    def _mask(self, batch: PagedBatch, part: Part) -> Tensor | None:
        if part.sees_all:
            return None
        device = batch.tables.device
        if len(self._columns) < part.length:
            self._columns = torch.arange(2 * part.length, device=device)
        positions = batch.positions[part.start : part.stop, : part.count]
        hidden = self._columns[: part.length] > positions[..., None]
        mask = torch.zeros(hidden.shape, dtype=self.arena.shape.dtype, device=device)
        return mask.masked_fill_(hidden, float("-inf"))[:, None]


class KeptAttention(GatherAttention):
    """Keeps the gathered copy between decode steps, on a CPU, where a copy costs as much as attending.

    For every place of every row it remembers the page and its stamp; the arena gives a page a new
    stamp whenever something is written to it, so a copy with the stamp of its page is that page. The
    token of the step itself is written to both; its page must be in one place of the batch only.
    """

    def __init__(self, arena: KvArena) -> None:
        super().__init__(arena)
        assert arena.device.type == "cpu"
        self._layers: tuple[Tensor, ...] = ()
        self._page = np.zeros((0, 0), dtype=np.int64)
        self._stamp = np.zeros((0, 0), dtype=np.int64)
        self._blocks = np.zeros((0, 0), dtype=np.int64)

    def plan(self, batch: PagedBatch) -> Plan:
        """Bring the copy up to date; chunks, and batches that are too large, are gathered."""
        rows, count = batch.tables.shape
        page_bytes = self.arena.shape.page_bytes
        if batch.positions.shape[1] > 1 or rows * count * page_bytes > KEPT_BYTES_MAX:
            return super().plan(batch)
        if rows > self._page.shape[0] or count >= self._page.shape[1]:
            self._grow(rows, count)
        self._refresh(batch)
        parts = parts_of(batch, self.arena.shape)
        planned = tuple(PlannedPart(part, self._mask(batch, part), None) for part in parts)
        return Plan(batch, self._written(batch), planned, self._note(batch))

    def attend(self, at: int, query: Tensor, fresh: Tensor, plan: Plan) -> Tensor:
        """Write to the arena and to the copy, attend to the copy."""
        if plan.kept is None:
            return super().attend(at, query, fresh, plan)
        layer, width = self.arena.layers[at], self.arena.shape.head_dim
        kept, flat = self._layers[at], fresh.reshape(-1, width)
        layer.view(-1, width).index_copy_(0, plan.write, flat)
        kept.view(-1, width).index_copy_(0, plan.kept, flat)

        def read(one: PlannedPart) -> tuple[Tensor, Tensor]:
            part = kept[:, one.part.start : one.part.stop, :, : one.part.length]
            return part[0], part[1]

        return _joined(query, plan.parts, read)

    def _grow(self, rows: int, count: int) -> None:
        """An empty copy with room for so many rows and pages, and a last page for padding."""
        shape = self.arena.shape
        rows = _grown(rows, self._page.shape[0])
        count = _grown(count + 1, self._page.shape[1])
        sizes = (2, rows, shape.kv_heads, count * PAGE_TOKENS, shape.head_dim)
        self._layers = tuple(torch.zeros(sizes, dtype=shape.dtype) for _ in range(shape.layers))
        self._page = np.full((rows, count), -1, dtype=np.int64)
        self._stamp = np.zeros((rows, count), dtype=np.int64)
        at = np.arange(2 * rows * shape.kv_heads).reshape(2, rows, shape.kv_heads)
        self._blocks = at.transpose(1, 0, 2).reshape(rows, -1) * count

    def _refresh(self, batch: PagedBatch) -> None:
        tables = batch.tables.numpy()
        rows, count = tables.shape
        page, stamp = self._page[:rows, :count], self._stamp[:rows, :count]
        stamps = self.arena.stamps[tables]
        row, place = np.nonzero((page != tables) | (stamp != stamps))
        if not len(row):
            return
        page[row, place] = tables[row, place]
        stamp[row, place] = stamps[row, place]
        head = self._head.numpy()
        source = torch.from_numpy((tables[row, place][:, None] * len(head) + head).reshape(-1))
        target = torch.from_numpy((self._blocks[row] + place[:, None]).reshape(-1))
        for layer, kept in zip(self.arena.layers, self._layers, strict=True):
            blocks = layer.view(-1, PAGE_TOKENS * layer.shape[-1])
            kept.view(-1, blocks.shape[1]).index_copy_(0, target, blocks.index_select(0, source))

    def _note(self, batch: PagedBatch) -> Tensor:
        """Give the written pages new stamps, and the copy with them; flat places of the tokens."""
        self.arena.touch(batch.pages)
        pages = batch.pages.numpy()[:, 0]
        place = batch.positions.numpy()[:, 0] // PAGE_TOKENS
        place[pages == self.arena.spill_page] = self._page.shape[1] - 1
        row = np.arange(len(pages))
        self._stamp[row, place] = self.arena.stamps[pages]
        blocks = self._blocks[: len(pages)] + place[:, None]
        return torch.from_numpy((blocks * PAGE_TOKENS + batch.offsets.numpy()).reshape(-1))


def attention_for(arena: KvArena) -> GatherAttention:
    """The fastest that is right on the arena's device."""
    return KeptAttention(arena) if arena.device.type == "cpu" else GatherAttention(arena)


def _grown(wanted: int, before: int) -> int:
    return before if wanted <= before else max(wanted, int(before * KEPT_GROWTH))


def _blocks(tables: Tensor, heads: int) -> Tensor:
    """Flat places of the blocks of these pages [B, P]: [2, B, kv_heads, P], keys first."""
    head = torch.arange(2 * heads, device=tables.device).view(2, 1, heads, 1)
    return (tables * (2 * heads))[None, :, None, :] + head


def _joined(
    query: Tensor,
    parts: Sequence[PlannedPart],
    read: Callable[[PlannedPart], tuple[Tensor, Tensor]],
) -> Tensor:
    """Each part's queries mixed; what padding gets is zero where it is in no part."""
    if len(parts) == 1 and parts[0].part.holds(query.shape[0], query.shape[2]):
        return _mix(query, *read(parts[0]), parts[0].mask)
    mixed = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for one in parts:
        rows, count = slice(one.part.start, one.part.stop), one.part.count
        mixed[rows, :, :count] = _mix(query[rows, :, :count], *read(one), one.mask)
    return mixed


def _mix(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention of queries [B, heads, S, D] to keys [B, kv_heads, length, D].

    In a decode step the queries of one key head are seen as positions of one head. On a CPU two
    products are then faster than torch's fused kernel, whose blocks are made for many queries (a
    third of the time at 32 rows).
    """
    heads, shared = query.shape[1], keys.shape[1]
    if query.shape[2] > 1:
        return functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=1.0, enable_gqa=heads > shared
        )
    grouped = query.reshape(query.shape[0], shared, -1, query.shape[3])
    if keys.device.type == "cpu" and keys.dtype == torch.float32:
        scores = torch.matmul(grouped, keys.transpose(-1, -2))
        if mask is not None:
            scores.add_(mask)
        mixed = torch.matmul(torch.softmax(scores, dim=-1), values)
    else:
        mixed = functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask, scale=1.0
        )
    return mixed.reshape(query.shape)
