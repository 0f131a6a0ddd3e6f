"""Pages of keys and values: what is written is what is read, and padding reaches nobody."""

import numpy as np
import pytest
import torch

from workers.rollout.embedded.arena import (
    PAGE_TOKENS,
    ArenaShape,
    KvArena,
    gather,
    paged_batch,
    write,
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


def test_tokens_written_through_a_block_table_are_gathered_in_order_of_position() -> None:
    one = arena()
    tables = np.array([[4, 1, one.null_page], [2, 0, 3]], dtype=np.int64)
    positions = np.array([[14, 15, 16, 17], [31, 32, 33, 0]], dtype=np.int64)
    is_real = np.array([[True] * 4, [True, True, True, False]])
    batch = paged_batch(one, tables, positions, is_real)
    keys = torch.randn(2, 4, 3, 4)
    values = torch.randn(2, 4, 3, 4)
    write(one.layers[1], batch, keys, values)
    got_keys, got_values = gather(one.layers[1], batch.tables)
    assert got_keys.shape == (2, 3, 3 * PAGE_TOKENS, 4)
    assert torch.equal(got_keys[0, :, 14:18], keys[0].transpose(0, 1))
    assert torch.equal(got_values[1, :, 31:34], values[1, :3].transpose(0, 1))
    assert not got_keys[1, :, :31].any()
    assert not one.layers[0].any()


def test_padding_that_is_not_a_number_is_seen_by_no_row() -> None:
    one = arena()
    tables = np.full((1, 2), one.null_page, dtype=np.int64)
    batch = paged_batch(one, tables, np.zeros((1, 1), np.int64), np.zeros((1, 1), np.bool_))
    broken = torch.full((1, 1, 3, 4), float("nan"))
    write(one.layers[0], batch, broken, broken)
    assert not torch.cat(gather(one.layers[0], batch.tables)).any()
