"""The embedded engine's door for pages: on their way to another engine, and from one.

Whole pages travel: those of a context's last, partial page are computed by the target. `Handover` is the
door as the port knows it; `leaving` and `arriving` are what it has the engine's thread do between two
decode steps. Copies and their tickets are `kv_transfer`'s.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
import torch

from domain.engine import EngineRefused, GenRequest
from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvLayout, KvRefused, KvTicket
from workers.rollout.embedded.arena import PAGE_TOKENS, KvArena
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.keys import Keys, namespace_of
from workers.rollout.embedded.pages.nodes import Node
from workers.rollout.embedded.thread import EngineThread
from workers.rollout.kv_transfer.pages import Content, KvRun
from workers.rollout.kv_transfer.transfer import KvTransfer


class Handover:
    """Both directions of one engine; without a `KvTransfer` nothing leaves and nothing comes."""

    def __init__(self, thread: EngineThread, transfer: KvTransfer | None) -> None:
        self._thread = thread
        self._core = thread.core
        self._transfer = transfer

    @property
    def is_open(self) -> bool:
        """Whether pages can leave."""
        return self._transfer is not None

    async def export(self, rollout_id: RolloutId) -> KvTicket:
        """Copy the rollout's whole pages on the device. Raises KvRefused."""
        if self._transfer is None:
            raise KvRefused(KvFailure.UNSUPPORTED, rollout_id)

        def leave() -> tuple[KvRun, Content] | KvRefused:
            try:
                return leaving(self._core, rollout_id)
            except KvRefused as refused:
                return refused

        try:
            left = await self._thread.ask(leave)
        except EngineRefused as closed:
            raise KvRefused(KvFailure.GONE, str(closed)) from closed
        if isinstance(left, KvRefused):
            raise left
        return await asyncio.to_thread(self._transfer.export, *left)

    async def look(self, request: GenRequest) -> Content | None:
        """The checked pages that come with a request; None when there are none that fit."""
        ticket, transfer = request.kv_source, self._transfer
        if ticket is None or transfer is None:
            return None
        layout = layout_of(self._core.keys.arena)
        # Which weights this request is served is known on the engine's thread, and checked there.
        sha, adapter = ticket.weights_sha, ""
        wanted = KvRun(request.rollout_id, request.token_ids, sha, layout, adapter)
        try:
            return await asyncio.to_thread(transfer.look, ticket, wanted)
        except KvRefused:
            return None

    def take_in(self, request: GenRequest, pages: Content) -> None:
        """Give a waiting request the pages that came with it; on the engine's thread."""
        ticket, transfer = request.kv_source, self._transfer
        assert ticket is not None
        assert transfer is not None
        try:
            tokens = arriving(self._core, request, pages)
        except KvRefused as refused:
            transfer.count_failure("import", refused)
            return
        transfer.note_import(ticket, tokens)


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
