"""An arena in numpy, as small as can be: pages that are read and written whole."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from domain.ids import RolloutId
from domain.kv_ticket import KvLayout
from workers.rollout.kv_transfer.pages import Content, KvRun
from workers.rollout.kv_transfer.transfer import KvTransfer

LAYOUT = KvLayout(page_tokens=16, layers=2, kv_heads=2, head_dim=8, dtype="float32")
ROLLOUT = RolloutId("ro_a_7_0")


class NumpyArena:
    """Keys and values of some pages."""

    def __init__(self, pages: int, seed: int = 0) -> None:
        shape = (pages, LAYOUT.layers, 2, LAYOUT.kv_heads, LAYOUT.page_tokens, LAYOUT.head_dim)
        self.numbers = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

    def read(self, pages: Sequence[int]) -> Content:
        """A copy of these pages."""
        taken = np.ascontiguousarray(self.numbers[list(pages)])
        return taken.view(np.uint8).reshape(len(pages), LAYOUT.page_bytes)

    def write(self, pages: Sequence[int], content: Content) -> None:
        """Put what `read` gave into these pages."""
        shape = (len(pages), *self.numbers.shape[1:])
        self.numbers[list(pages)] = content.reshape(-1).view(np.float32).reshape(shape)


class Wall:
    """Unix time in the test's hand."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


def run_of(tokens: int, **changed: object) -> KvRun:
    """The first ids of a rollout."""
    run = KvRun(ROLLOUT, tuple(range(100, 100 + tokens)), "sha3", LAYOUT, tenant="org_0")
    return replace(run, **changed)  # type: ignore[arg-type]  # a test names its own


def pages_of(run: KvRun) -> list[int]:
    """Some pages of an arena, in no special order."""
    return [3 * page + 1 for page in reversed(range(LAYOUT.pages(len(run.token_ids))))]


def exported(transfer: KvTransfer, arena: NumpyArena, run: KvRun) -> Content:
    """Export a run's pages; what they held."""
    content = arena.read(pages_of(run))
    transfer.export(run, content)
    return content
