"""Keys and values of one engine in pages of 16 tokens: one tensor per layer.

    layer   [pages + 2, key|value, kv_heads, 16, head_dim]
    page    0 .. pages-1      given out by the page table
            pages             null: zeros for ever, what the unused end of a block table names
            pages + 1         spill: where padding is written, read by nobody

The token at position p of a row stands in page `tables[row, p // 16]` at offset `p % 16`. Whoever reads
past the end of a row reads null, so that a value that is not a number never leaves its own row: a masked
position still enters a product, with weight zero, and zero times not-a-number is not zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

PAGE_TOKENS: Final = 16
"""Tokens of a page, as in the serving engines: small enough to share prefixes, large enough to copy."""

_EXTRA_PAGES: Final = 2
"""The null page and the spill page."""


@dataclass(frozen=True, slots=True)
class ArenaShape:
    """What one token takes. `dtype` is float32 or bfloat16."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return self.layers * PAGE_TOKENS * self.token_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim * self.dtype.itemsize


class KvArena:
    """The tensors. Which page is whose is the page table's matter (`embedded.pages`)."""

    def __init__(self, shape: ArenaShape, pages: int, device: torch.device) -> None:
        assert pages >= 1
        self.shape = shape
        self.pages = pages
        self.null_page = pages
        self.spill_page = pages + 1
        self.device = device
        sizes = (
            shape.layers,
            pages + _EXTRA_PAGES,
            2,
            shape.kv_heads,
            PAGE_TOKENS,
            shape.head_dim,
        )
        self._whole = torch.zeros(sizes, dtype=shape.dtype, device=device)
        self.layers: tuple[Tensor, ...] = self._whole.unbind(0)
        """Per layer [pages + 2, 2, kv_heads, 16, head_dim]; views, written in place."""
        self.stamps = np.zeros(pages + _EXTRA_PAGES, dtype=np.int64)
        """Per page, how often it was written to: a copy with an older stamp is out of date."""

    def read(self, pages: Sequence[int]) -> Tensor:
        """A copy of these pages in the memory of the host: [n, page_bytes], uint8."""
        taken = self._whole.index_select(1, self._index(pages)).transpose(0, 1).contiguous()
        return taken.cpu().view(torch.uint8).view(len(pages), self.shape.page_bytes)

    def write(self, pages: Sequence[int], content: Tensor) -> None:
        """Put what `read` gave into these pages."""
        assert content.shape == (len(pages), self.shape.page_bytes)
        sizes = (len(pages), *self._whole.shape[:1], *self._whole.shape[2:])
        values = content.contiguous().view(self.shape.dtype).view(sizes)
        self.stamps[list(pages)] += 1
        self._whole[:, self._index(pages)] = values.to(self.device).transpose(0, 1)

    def copy(self, source: int, target: int) -> None:
        """Copy one page onto another: a sequence goes on where another one branched off."""
        self.stamps[target] += 1
        self._whole[:, target] = self._whole[:, source]

    def clear(self, pages: Sequence[int]) -> None:
        """Zero these pages: what is in them is not a number, or another tenant's."""
        self.stamps[list(pages)] += 1
        self._whole[:, self._index(pages)] = 0

    def touch(self, pages: Tensor) -> None:
        """Say that these pages are written to, through `layers`. Copies are kept on a CPU only."""
        if self.device.type == "cpu":
            self.stamps[pages.numpy()] += 1

    def _index(self, pages: Sequence[int]) -> Tensor:
        return torch.tensor(pages, dtype=torch.int64, device=self.device)


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Where the tokens of one forward pass stand; all tensors int64, on the arena's device.

    `S` tokens for each of `B` rows (1 in a decode step). A query at position p sees keys 0..p of its
    row. Padding has position 0 and the spill page; its hidden state means nothing.
    """

    tables: Tensor
    """[B, P]: pages of each row in order of position, null page behind its last one; P covers the
    longest row of the batch, so P x 16 is the attended length."""
    positions: Tensor
    """[B, S]"""
    pages: Tensor
    """[B, S]: page that each token's key and value are written to."""
    offsets: Tensor
    """[B, S]: place in that page, 0..15."""
    counts: tuple[int, ...]
    """[B]: how many of a row's places, from the first on, hold tokens; the rest is padding."""
    lengths: tuple[int, ...]
    """[B]: keys that the last token of a row sees, itself included; 1 where all is padding."""


def paged_batch(
    arena: KvArena,
    tables: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    is_real: npt.NDArray[np.bool_],
) -> PagedBatch:
    """The batch of tokens at `positions` [B, S] of rows with these block tables [B, P].

    Where `is_real` [B, S] is false there is padding, at the end of rows only.
    """
    seen = np.where(is_real, positions, 0)
    row_pages = np.take_along_axis(tables, seen // PAGE_TOKENS, axis=1)
    pages = np.where(is_real, row_pages, arena.spill_page)

    def tensor(array: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(arena.device)

    return PagedBatch(
        tensor(tables),
        tensor(seen),
        tensor(pages),
        tensor(seen % PAGE_TOKENS),
        tuple(is_real.sum(axis=1).tolist()),
        tuple((seen.max(axis=1) + 1).tolist()),
    )
