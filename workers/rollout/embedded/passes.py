"""The forward passes of one step: which rows compute what, in batches over their pages."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from workers.rollout.embedded.arena import PAGE_TOKENS, PagedBatch, paged_batch
from workers.rollout.embedded.attention import attention_for
from workers.rollout.embedded.forward import decode, prefill
from workers.rollout.embedded.occupancy import Occupancy
from workers.rollout.embedded.packing import PackedModel
from workers.rollout.embedded.pages.tree import EvictReason
from workers.rollout.embedded.sampling import sample
from workers.rollout.embedded.turn_adapters import TurnAdapters
from workers.rollout.embedded.turns import Running

PREFILL_CHUNK: Final = 128
"""Prompt tokens of one row per engine step: a long prompt never stalls running rows for long."""

PREFILL_TOKENS_MAX: Final = 2048
"""Prompt tokens of all rows per engine step, padding included."""

PAGES_STEP: Final = 2
"""Attended pages are rounded up to it: few distinct shapes, so kernels are planned once."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """One token for each of these rows."""

    ready: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]

    def part(self, chosen: npt.NDArray[np.bool_]) -> "Drawn":
        """Those of some rows."""
        return Drawn(self.ready[chosen], self.tokens[chosen], self.logprobs[chosen])


class Passes:
    """Runs a model over the rows. Rows may lose their slots while room is made for others."""

    def __init__(self, slots: Occupancy, adapters: TurnAdapters) -> None:
        self.slots = slots
        self.keys = slots.keys
        self.rows = slots.rows
        self.adapters = adapters
        self.device = slots.keys.arena.device
        self.attention = attention_for(slots.keys.arena)

    def prefill(self, model: PackedModel) -> list[Running]:
        """Compute the next chunk of every prompt that is due, within the budget.

        Returns the turns whose chunk is not made of numbers: they must end before their pages are
        anybody else's.
        """
        chosen = self._prefilled()
        if not chosen:
            return []
        rows, started = self.rows, self.keys.clock()
        places = {id(one): row for row, one in enumerate(rows.running)}
        needy = np.array([places[id(one)] for one, _ in chosen], dtype=np.int64)
        counts = np.array([count for _, count in chosen], dtype=np.int64)
        steps = np.arange(counts.max())
        is_real = steps[None] < counts[:, None]
        positions = np.where(is_real, rows.kv_length[needy, None] + steps[None], 0)
        tokens = rows.tokens[needy[:, None], positions]
        batch = self._batch(rows.tables[needy], positions, is_real)
        fed = self._tensor(np.where(is_real, tokens, 0))
        adapted = self.adapters.of_chunks((rows.running[row] for row in needy), self.device)
        hidden = prefill(model, self.attention, batch, fed, adapted)
        # What is not a number shows in the sum; what padding holds means nothing.
        is_finite = hidden.sum(dim=-1).isfinite().cpu().numpy()
        is_broken = (~is_finite & is_real).any(axis=1)
        for row, count in zip(needy[~is_broken].tolist(), counts[~is_broken].tolist(), strict=True):
            before = int(rows.kv_length[row])
            self.keys.count_prefill(rows.running[row], before, before + count)
            rows.kv_length[row] = before + count
            self.slots.counters.attended_tokens += count * before + count * (count + 1) // 2
            self.slots.fill(row)
        self.slots.counters.prefilled_tokens += int(counts.sum())
        self.keys.note_prefill(int(counts.sum()), self.keys.clock() - started)
        return [rows.running[row] for row in needy[is_broken]]

    def _prefilled(self) -> list[tuple[Running, int]]:
        """Which rows compute how many tokens of their prompts in this step: the best ranked first.

        A page that another row computes in the same step is left to that row.
        """
        rows, n = self.rows, self.slots.active
        missing = rows.length[:n] - 1 - rows.kv_length[:n]
        needy = [rows.running[row] for row in np.flatnonzero(missing > 0)]
        chosen: list[tuple[Running, int]] = []
        computing: set[bytes] = set()
        for running in sorted(needy, key=self._order):
            longest = max((count for _, count in chosen), default=0)
            if (len(chosen) + 1) * longest >= PREFILL_TOKENS_MAX:
                break
            count = self._chunk(running, computing)
            if not count or not self.slots.grow(
                running, running.lease.length + count, EvictReason.PROMPT
            ):
                continue
            start = running.lease.length
            computing.update(running.digests[start // PAGE_TOKENS : (start + count) // PAGE_TOKENS])
            rows.follow_lease(rows.running.index(running))
            chosen.append((running, count))
        return [(one, count) for one, count in chosen if one.ticket.parked is None]

    def _chunk(self, running: Running, computing: set[bytes]) -> int:
        """Tokens that this row computes now; 0 while its next page comes from elsewhere."""
        rows = self.rows
        if running.is_loading or running.ticket.parked is not None:
            return 0
        row = rows.running.index(running)
        if self.keys.share(running):
            self.slots.find(row)
        at, place = divmod(int(rows.kv_length[row]), PAGE_TOKENS)
        is_next_known = not place and at < len(running.digests)
        if is_next_known and running.digests[at] in computing:
            return 0
        if self.keys.table.is_coming(running.lease, running.digests):
            return 0
        return int(min(rows.length[row] - 1 - rows.kv_length[row], PREFILL_CHUNK))

    def _order(self, running: Running) -> tuple[float, int]:
        return self.keys.admission.queue_key(running.ticket)

    def decode(self, model: PackedModel) -> Drawn | None:
        """Draw one token for every row that is ready."""
        self._grow_ready()
        rows, n = self.rows, self.slots.active
        kv = rows.kv_length[:n]
        is_ready = self._ready()
        ready = np.flatnonzero(is_ready)
        if not len(ready):
            return None
        fed = rows.tokens[np.arange(n), kv]
        batch = self._batch(rows.tables[:n], np.where(is_ready, kv, 0)[:, None], is_ready[:, None])
        adapted = self.adapters.of_step(rows.running, self.device)
        self.slots.counters.kv_read_tokens += int(kv[ready].sum()) + len(ready)
        logits = decode(model, self.attention, batch, self._tensor(fed), adapted)
        chosen = slice(None) if len(ready) == n else ready
        tokens, logprobs = sample(
            logits[chosen],
            self._tensor(rows.noise[ready, rows.length[ready]]),
            self._tensor(rows.temperature[:n][chosen]),
            self._tensor(rows.top_p[:n][chosen]),
        )
        return Drawn(ready, tokens.cpu().numpy(), logprobs.float().cpu().numpy())

    def _ready(self) -> npt.NDArray[np.bool_]:
        rows, n = self.rows, self.slots.active
        is_ready: npt.NDArray[np.bool_] = rows.kv_length[:n] == rows.length[:n] - 1
        is_ready[[row for row, one in enumerate(rows.running) if one.is_loading]] = False
        return is_ready

    def _grow_ready(self) -> None:
        """Have a page for the next token of every ready row: the best ranked first."""
        rows, n = self.rows, self.slots.active
        is_short = self._ready() & (rows.kv_length[:n] >= rows.room[:n])
        short = [rows.running[row] for row in np.flatnonzero(is_short)]
        for running in sorted(short, key=self._order):
            if running.ticket.parked is not None:
                continue
            length = int(rows.kv_length[rows.running.index(running)])
            if self.slots.grow(running, length + 1, EvictReason.GROWTH):
                rows.follow_lease(rows.running.index(running))

    def _batch(
        self,
        tables: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        is_real: npt.NDArray[np.bool_],
    ) -> PagedBatch:
        step = PAGE_TOKENS * PAGES_STEP
        pages = -(-(int(positions.max()) + 1) // step) * PAGES_STEP
        return paged_batch(self.keys.arena, tables[:, :pages], positions, is_real)

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device)
