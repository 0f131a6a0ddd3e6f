"""Attention over pages: the kept copy is never out of date, and grouped heads read their own keys."""

from random import Random

import numpy as np
import pytest
import torch

from workers.rollout.embedded import attention as attention_module
from workers.rollout.embedded.arena import ArenaShape, KvArena, paged_batch
from workers.rollout.embedded.attention import GatherAttention, KeptAttention

CPU = torch.device("cpu")
PAGES, ROWS, WIDTH = 12, 4, 4


def arena(dtype: torch.dtype = torch.float32) -> KvArena:
    torch.manual_seed(0)
    one = KvArena(ArenaShape(layers=2, kv_heads=3, head_dim=WIDTH, dtype=dtype), PAGES, CPU)
    for layer in one.layers:
        layer[:PAGES] = torch.randn(PAGES, *layer.shape[1:]).to(dtype)
    return one


def step(
    one: GatherAttention, tables: np.ndarray, positions: np.ndarray, is_real: np.ndarray, seed: int
) -> torch.Tensor:
    """One pass of both layers with random queries, keys and values."""
    rows, new = positions.shape
    batch = paged_batch(one.arena, tables, positions, is_real)
    plan = one.plan(batch)
    generator = torch.Generator().manual_seed(seed)
    mixed = []
    for at in range(2):
        query = torch.randn(rows, 6, new, WIDTH, generator=generator)
        fresh = torch.randn(rows, new, 6, WIDTH, generator=generator)
        mixed.append(one.attend(at, query, fresh, plan))
    return torch.stack(mixed)[:, torch.from_numpy(is_real.any(axis=1))]


def disturb(rng: Random, arenas: tuple[KvArena, KvArena]) -> None:
    """What tiers, forks and hygiene do to pages between two steps."""
    source, target = rng.sample(range(PAGES), 2)
    kind = rng.randrange(4)
    for one in arenas:
        if kind == 0:
            one.copy(source, target)
        elif kind == 1:
            one.clear([source])
        elif kind == 2:
            one.write([target], one.read([source]))


def dealt(rng: Random) -> tuple[list[int], np.ndarray]:
    """Lengths, and block tables in which the page that a row writes to is in no other place."""
    lengths = [16 * rng.randrange(3) + rng.randrange(12) for _ in range(ROWS)]
    pages = rng.sample(range(PAGES), PAGES)
    tables = np.array([rng.choices(pages[ROWS:], k=3) for _ in range(ROWS)], dtype=np.int64)
    for row, length in enumerate(lengths):
        tables[row, length // 16] = pages[row]
    return lengths, tables


@pytest.mark.parametrize("seed", range(20))
def test_the_kept_copy_gives_what_a_fresh_one_gives_after_any_change_of_pages(seed: int) -> None:
    rng = Random(seed)
    fresh, kept = GatherAttention(arena()), KeptAttention(arena())
    lengths, tables = dealt(rng)
    for at in range(60):
        if rng.random() < 0.3:
            disturb(rng, (fresh.arena, kept.arena))
        if rng.random() < 0.1 or any(length % 16 >= 14 for length in lengths):
            lengths, tables = dealt(rng)
        rows, new = rng.randint(1, ROWS), 2 if rng.random() < 0.2 else 1
        positions = np.array(lengths[:rows])[:, None] + np.arange(new)
        is_real = np.ones((rows, new), dtype=np.bool_)
        is_real[rng.randrange(rows), -1] = rng.random() < 0.7
        used = tables[:rows, : int(positions.max()) // 16 + 1].copy()
        expected = step(fresh, used, positions, is_real, at)
        assert torch.allclose(step(kept, used, positions, is_real, at), expected, atol=1e-6)
        lengths = [n + new if row < rows else n for row, n in enumerate(lengths)]


def test_a_batch_above_the_limit_is_gathered_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_module, "KEPT_BYTES_MAX", 0)
    fresh, kept = GatherAttention(arena()), KeptAttention(arena())
    tables = np.array([[0, 1], [2, 3]], dtype=np.int64)
    positions = np.array([[20], [5]], dtype=np.int64)
    is_real = np.ones((2, 1), dtype=np.bool_)
    first = step(fresh, tables, positions, is_real, 0)
    assert torch.equal(first, step(kept, tables, positions, is_real, 0))


@pytest.mark.parametrize("kind", [GatherAttention, KeptAttention])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_query_head_attends_to_its_own_key_head(
    kind: type[GatherAttention], dtype: torch.dtype
) -> None:
    one = kind(arena(dtype))
    tables = np.array([[5, 7]], dtype=np.int64)
    batch = paged_batch(one.arena, tables, np.array([[18]]), np.ones((1, 1), np.bool_))
    torch.manual_seed(1)
    query = torch.randn(1, 6, 1, WIDTH).to(dtype)
    fresh = torch.randn(1, 1, 6, WIDTH).to(dtype)
    mixed = one.attend(1, query, fresh, one.plan(batch))
    layer = one.arena.layers[1]
    keys, values = layer[[5, 7]].permute(1, 2, 0, 3, 4).reshape(2, 3, 32, WIDTH)[:, :, :19].float()
    assert torch.equal(keys[:, 18].to(dtype), fresh[0, 0, :3])
    for head in range(6):
        weights = (query[0, head].float() @ keys[head // 2].T).softmax(-1)
        expected = weights @ values[head // 2]
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        assert torch.allclose(mixed[0, head].float(), expected, atol=tolerance)


@pytest.mark.parametrize("kind", [GatherAttention, KeptAttention])
def test_tokens_are_stored_at_their_places_and_padding_that_is_no_number_reaches_nobody(
    kind: type[GatherAttention],
) -> None:
    one = kind(arena())
    before = [layer.clone() for layer in one.arena.layers]
    tables = np.array([[4, 1], [2, one.arena.null_page]], dtype=np.int64)
    is_real = np.array([[True], [False]])
    batch = paged_batch(one.arena, tables, np.array([[17], [0]], dtype=np.int64), is_real)
    fresh = torch.randn(2, 1, 6, WIDTH)
    fresh[1] = float("nan")
    for _ in range(2):
        mixed = one.attend(0, torch.randn(2, 6, 1, WIDTH), fresh, one.plan(batch))
        assert mixed.isfinite().all()
    layer = one.arena.layers[0]
    assert torch.equal(layer[1, 0, :, 1], fresh[0, 0, :3])
    assert torch.equal(layer[1, 1, :, 1], fresh[0, 0, 3:])
    before[0][1, :, :, 1] = layer[1, :, :, 1]
    assert torch.equal(layer[: one.arena.spill_page], before[0][: one.arena.spill_page])
    assert torch.equal(one.arena.layers[1], before[1])
