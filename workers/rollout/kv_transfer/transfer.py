"""Exports of one engine process: copies of pages, bounded in bytes and number, each with an end.

    export -> ticket -> [opened by a process here, or read in ranges] -> release | expiry | close

The pages themselves may be evicted at once: the copy is what the target reads.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvRefused, KvTicket
from workers.rollout.kv_transfer.pages import Content, KvRun, checksum, fit, token_sha, verify
from workers.rollout.kv_transfer.segments import Segment, machine

EXPORT_BYTES_MAX: Final = 1 << 30
"""Memory of the host that departures may take; contexts of a small model need a few MB each."""

EXPORTS_MAX: Final = 64
"""Departures at once, each an open descriptor; moves are decided one by one, in gaps."""

KEEP_S: Final = 30.0
"""A target fetches at once, or it was lost and another placement computes anew."""


@dataclass(frozen=True, slots=True)
class Export:
    """One copy and its ticket."""

    ticket: KvTicket
    segment: Segment


class KvTransfer:
    """Both directions of one engine process. Safe from its event loop and its engine's thread."""

    def __init__(
        self,
        now: Callable[[], float],
        *,
        bytes_max: int = EXPORT_BYTES_MAX,
        exports_max: int = EXPORTS_MAX,
        keep_s: float = KEEP_S,
    ) -> None:
        """`now` is Unix time: tickets are read by other processes."""
        self._now = now
        self._bytes_max = bytes_max
        self._exports_max = exports_max
        self._keep_s = keep_s
        self._exports: dict[RolloutId, Export] = {}
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """Exports, imports, failures by reason, tokens and bytes of both directions."""

    @property
    def held_bytes(self) -> int:
        """Bytes of all copies."""
        with self._lock:
            return sum(export.segment.size for export in self._exports.values())

    def export(self, run: KvRun, content: Content) -> KvTicket:
        """Keep a copy of a run's pages; the rollout's former one is dropped. Raises KvRefused."""
        tokens, layout = len(run.token_ids), run.layout
        assert content.shape == (layout.pages(tokens), layout.page_bytes)
        try:
            if not tokens:
                raise KvRefused(KvFailure.NO_PAGES, "nothing is cached")
            self.release(run.rollout_id)
            self._make_room(content.nbytes)
            segment = Segment.filled(f"kv-{run.rollout_id}", [content])
        except KvRefused as refused:
            self.count_failure("export", refused)
            raise
        ticket = KvTicket(
            rollout_id=run.rollout_id,
            tokens=tokens,
            token_sha=token_sha(run.token_ids),
            weights_sha=run.weights_sha,
            layout=layout,
            checksums=tuple(checksum(page) for page in content),
            path=segment.path,
            machine=machine(),
            expires_at=self._now() + self._keep_s,
            adapter_sha=run.adapter_sha,
            tenant=run.tenant,
        )
        with self._lock:
            self._exports[run.rollout_id] = Export(ticket, segment)
        self.counts["exports"] += 1
        self.counts["exported_tokens"] += tokens
        self.counts["exported_bytes"] += segment.size
        return ticket

    def read(self, rollout_id: RolloutId, offset: int, count: int) -> bytes:
        """A range of an export's bytes. Raises KvRefused when it is gone."""
        self.sweep()
        with self._lock:
            export = self._exports.get(rollout_id)
            if export is None:
                raise KvRefused(KvFailure.GONE, rollout_id)
            return export.segment.read(offset, count)

    def find(self, rollout_id: RolloutId) -> KvTicket | None:
        """The ticket of a live export."""
        self.sweep()
        with self._lock:
            export = self._exports.get(rollout_id)
            return None if export is None else export.ticket

    def release(self, rollout_id: RolloutId) -> bool:
        """Drop an export; False when there is none."""
        with self._lock:
            export = self._exports.pop(rollout_id, None)
        if export is not None:
            export.segment.close()
        return export is not None

    def sweep(self) -> None:
        """Drop what has expired; called at every access, and by whoever has a clock."""
        now = self._now()
        with self._lock:
            old = [r for r, export in self._exports.items() if export.ticket.expires_at <= now]
        for rollout_id in old:
            self.counts["exports_expired"] += self.release(rollout_id)

    def take(self, ticket: KvTicket, wanted: KvRun) -> Content:
        """Pages of a ticket for the beginning of a run, checked in every way. Raises KvRefused."""
        content = self.look(ticket, wanted)
        self.note_import(ticket, ticket.tokens)
        return content

    def look(self, ticket: KvTicket, wanted: KvRun) -> Content:
        """The same; whether the engine takes them in is still open (`note_import`, `count_failure`)."""
        try:
            fit(ticket, wanted, self._now())
            segment = Segment.opened(ticket.path, ticket.size)
            try:
                content = segment.pages(ticket.layout.page_bytes)
            finally:
                segment.close()
            verify(ticket, content)
        except KvRefused as refused:
            self.count_failure("import", refused)
            raise
        return content

    def note_import(self, ticket: KvTicket, tokens: int) -> None:
        """Count pages that an engine took in; `tokens` of them were new to it."""
        self.counts["imports"] += 1
        self.counts["imported_tokens"] += tokens
        self.counts["imported_bytes"] += ticket.layout.pages(tokens) * ticket.layout.page_bytes

    def count_failure(self, direction: str, refused: KvRefused) -> None:
        """Count what was not handed over: it is computed anew."""
        self.counts[f"{direction}_failed_{refused.reason.value}"] += 1

    def figures(self) -> dict[str, float]:
        """Figures for heartbeats."""
        self.sweep()
        # Copied in one go: the engine's thread counts meanwhile.
        counts = {f"kv_{name}": float(count) for name, count in self.counts.copy().items()}
        return counts | {"kv_export_bytes": float(self.held_bytes)}

    def close(self) -> None:
        """Drop everything."""
        for rollout_id in list(self._exports):
            self.release(rollout_id)

    def _make_room(self, size: int) -> None:
        self.sweep()
        with self._lock:
            count = len(self._exports)
        if count >= self._exports_max:
            raise KvRefused(KvFailure.NO_ROOM, f"{count} exports are open")
        if self.held_bytes + size > self._bytes_max:
            raise KvRefused(KvFailure.NO_ROOM, f"{size} bytes more than {self._bytes_max}")
