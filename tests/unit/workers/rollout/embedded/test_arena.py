"""Pages of keys and values: what is written is what is read, and padding reaches nobody."""

import numpy as np
import pytest
import torch

from workers.rollout.embedded.arena import (
    ArenaShape,
    KvArena,
    paged_batch,
)

CPU = torch.device("cpu")


def arena(pages: int = 5, dtype: torch.dtype = torch.float32) -> KvArena:
    return KvArena(ArenaShape(layers=2, kv_heads=3, head_dim=4, dtype=dtype), pages, CPU)


def filled(dtype: torch.dtype = torch.float32) -> KvArena:
    one = arena(dtype=dtype)
    torch.manual_seed(0)
    for layer in one.layers:
        layer[: one.pages] = torch.randn(one.pages, *layer.shape[1:]).to(dtype)
    return one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_that_were_read_and_written_elsewhere_hold_the_same_bytes(
    dtype: torch.dtype,
) -> None:
    source, target = filled(dtype), arena(dtype=dtype)
    taken = source.read([3, 1])
    assert taken.shape == (2, source.shape.page_bytes)
    target.write([0, 4], taken)
    for layer, other in zip(source.layers, target.layers, strict=True):
        assert torch.equal(layer[[3, 1]], other[[0, 4]])
        assert not other[[1, 2, 3]].any()


def test_a_copied_page_is_of_its_own() -> None:
    one = filled()
    one.copy(2, 0)
    before = one.read([2])
    assert torch.equal(one.read([0]), before)
    one.clear([0])
    assert not one.read([0]).any()
    assert torch.equal(one.read([2]), before)


def test_a_batch_says_where_its_tokens_are_written_and_padding_goes_to_the_spill_page() -> None:
    one = arena()
    tables = np.array([[4, 1, one.null_page], [2, 0, 3]], dtype=np.int64)
    positions = np.array([[14, 15, 16, 17], [31, 32, 33, 0]], dtype=np.int64)
    is_real = np.array([[True] * 4, [True, True, True, False]])
    batch = paged_batch(one, tables, positions, is_real)
    assert batch.pages.tolist() == [[4, 4, 1, 1], [0, 3, 3, one.spill_page]]
    assert batch.offsets.tolist() == [[14, 15, 0, 1], [15, 0, 1, 0]]
    assert batch.positions.tolist() == positions.tolist()
