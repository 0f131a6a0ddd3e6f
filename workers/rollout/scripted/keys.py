"""Pages of the scripted engine: real bytes that follow from the ids, so that a wrong page shows.

Page n of a rollout is a function of the weights and of all ids up to its end, as with real keys.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvLayout, KvRefused
from workers.rollout.kv_transfer.pages import Content, KvRun

LAYOUT: Final = KvLayout(page_tokens=16, layers=1, kv_heads=1, head_dim=4, dtype="float32")
"""Small, and several pages long for a context of a hundred tokens."""


class ScriptedKeys:
    """Ids whose keys the engine pretends to hold, by rollout."""

    def __init__(self) -> None:
        self._runs: dict[RolloutId, KvRun] = {}

    def keep(
        self, rollout_id: RolloutId, token_ids: Sequence[int], weights_sha: str, tenant: str
    ) -> None:
        """A turn ended: all its ids but the last have keys."""
        ids = tuple(token_ids[:-1])
        self._runs[rollout_id] = KvRun(rollout_id, ids, weights_sha, LAYOUT, tenant=tenant)

    def drop(self, rollout_id: RolloutId) -> None:
        """The rollout will not come back, or a turn of it was aborted."""
        self._runs.pop(rollout_id, None)

    def run(self, rollout_id: RolloutId) -> KvRun:
        """What is held of a rollout. Raises KvRefused."""
        found = self._runs.get(rollout_id)
        if found is None:
            raise KvRefused(KvFailure.NO_PAGES, rollout_id)
        return found


def content_of(run: KvRun) -> Content:
    """The pages of a run."""
    layout, ids = run.layout, np.asarray(run.token_ids, dtype="<i8")
    pages = []
    for end in range(layout.page_tokens, len(ids) + layout.page_tokens, layout.page_tokens):
        seed = run.weights_sha.encode() + ids[:end].tobytes()
        data = hashlib.shake_128(seed).digest(layout.page_bytes)
        pages.append(np.frombuffer(data, dtype=np.uint8))
    return np.stack(pages) if pages else np.empty((0, layout.page_bytes), dtype=np.uint8)
