"""Pages of the embedded engine on their way to another engine, and from one.

Whole pages travel: those of a context's last, partial page are computed by the target. What is here runs
on the engine's thread, between two decode steps.
"""

from collections.abc import Sequence

import numpy as np
import torch

from domain.engine import GenRequest
from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvLayout, KvRefused
from workers.rollout.embedded.arena import PAGE_TOKENS, KvArena
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.keys import Keys, namespace_of
from workers.rollout.embedded.pages.nodes import Node
from workers.rollout.kv_transfer.pages import Content, KvRun


class ArenaPages:
    """The arena as `PageSource` and `PageSink`."""

    def __init__(self, arena: KvArena) -> None:
        self._arena = arena

    def read(self, pages: Sequence[int]) -> Content:
        """A copy of these pages in the memory of the host."""
        content: Content = self._arena.read(pages).numpy()
        return content

    def write(self, pages: Sequence[int], content: Content) -> None:
        """Put what `read` gave into these pages."""
        # Copied: what arrives is memory that nobody may write to, and torch asks for more than that.
        self._arena.write(pages, torch.from_numpy(content.copy()))


def layout_of(arena: KvArena) -> KvLayout:
    """How pages of this arena lie."""
    shape = arena.shape
    name = str(shape.dtype).removeprefix("torch.")
    return KvLayout(PAGE_TOKENS, shape.layers, shape.kv_heads, shape.head_dim, name)


def leaving(core: Core, rollout_id: RolloutId) -> tuple[KvRun, Content]:
    """The whole pages that the rollout's last turn left, in whichever tier. Raises KvRefused.

    The identity of the weights is that of all that made them: of the base and of an adapter on it.
    """
    keys = core.keys
    trajectory = keys.table.tree.trajectories.get(rollout_id)
    if trajectory is None or not trajectory.path:
        raise KvRefused(KvFailure.NO_PAGES, rollout_id)
    namespace = trajectory.path[0].namespace
    nodes = keys.table.exported(rollout_id, namespace)
    content = _content(keys, nodes)
    if not len(content):
        raise KvRefused(KvFailure.NO_PAGES, f"{rollout_id} has no whole page")
    token_ids = tuple(token for node in nodes[: len(content)] for token in node.tokens)
    return KvRun(rollout_id, token_ids, namespace.weights_sha, layout_of(keys.arena)), content


def _content(keys: Keys, nodes: Sequence[Node]) -> Content:
    """Of pages on the device, then of those behind them in outer tiers, as far as they can be had."""
    near = [node.page for node in nodes if node.is_usable and node.page is not None]
    content = ArenaPages(keys.arena).read(near)
    far = nodes[len(near) :]
    if not far or keys.tiers is None:
        return content
    pages = keys.tiers.read(far)
    return np.concatenate([content, np.stack(pages)]) if pages else content


def arriving(core: Core, request: GenRequest, content: Content) -> int:
    """Take in the pages that came with a waiting request; the tokens that were new. Raises KvRefused."""
    source, keys = request.kv_source, core.keys
    assert source is not None
    served = core.served_sha(core.waiting[request.request_id])
    if served != source.weights_sha:
        raise KvRefused(KvFailure.OTHER_WEIGHTS, f"of {source.weights_sha}, {served} are served")
    namespace, now = namespace_of(request, served), core.clock()
    context = request.token_ids[: source.tokens]
    first, pages = keys.table.adopt(request.rollout_id, namespace, context, now)
    if not pages and first < source.tokens // PAGE_TOKENS:
        raise KvRefused(KvFailure.NO_ROOM, "the device has no pages free")
    if pages:
        ArenaPages(keys.arena).write(pages, content[first : first + len(pages)])
    return len(pages) * PAGE_TOKENS
