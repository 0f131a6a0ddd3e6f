"""What an engine has had: digests of whole pages, and the last page of each rollout, which has none.

By it the engine knows what it computes again. A digest covers tenant, weights and all tokens before, so
that nothing need be forgotten when weights change or a prompt is rewritten.
"""

from dataclasses import dataclass
from typing import Final

from domain.ids import RolloutId
from workers.rollout.embedded.pages.nodes import PAGE_TOKENS, Lease, Namespace, common

PAGES_MAX: Final = 65_536
"""Digests remembered, some 6 MB: a million tokens, far more than a device of this engine holds."""

TAILS_MAX: Final = 4096
"""Rollouts whose last page is remembered."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Tokens of a page that is not full, and what stands before it."""

    place: int
    before: bytes
    tokens: tuple[int, ...]


class PageMemory:
    """What was here last is forgotten last."""

    def __init__(self) -> None:
        self._pages: dict[bytes, None] = {}
        self._tails: dict[RolloutId, Tail] = {}

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._pages

    def note(self, digest: bytes) -> None:
        """The keys of this page are here."""
        self._pages.pop(digest, None)
        self._pages[digest] = None
        if len(self._pages) > PAGES_MAX:
            del self._pages[next(iter(self._pages))]

    def forget(self, digest: bytes) -> None:
        """What stood in this page were no keys."""
        self._pages.pop(digest, None)

    def note_tail(self, lease: Lease) -> None:
        """A turn ended: its last page waits for the next one of its rollout."""
        place = lease.length // PAGE_TOKENS
        before = lease.nodes[place - 1].digest if place else lease.namespace.root
        self.release(lease.trajectory.rollout_id)
        if lease.length % PAGE_TOKENS == 0 or before is None:
            return
        self._tails[lease.trajectory.rollout_id] = Tail(place, before, lease.nodes[place].tokens)
        if len(self._tails) > TAILS_MAX:
            del self._tails[next(iter(self._tails))]

    def tail(
        self,
        rollout_id: RolloutId,
        namespace: Namespace,
        digests: tuple[bytes, ...],
        tokens: tuple[int, ...],
    ) -> range:
        """Positions of this context that stood in the rollout's last page; `digests` are its whole ones."""
        tail = self._tails.get(rollout_id)
        if tail is None or tail.place > len(digests):
            return range(0)
        before = digests[tail.place - 1] if tail.place else namespace.root
        start = tail.place * PAGE_TOKENS
        count = common(tail.tokens, tokens[start:]) if before == tail.before else 0
        return range(start, start + count)

    def release(self, rollout_id: RolloutId) -> None:
        """The rollout will not come back, or has another last page."""
        self._tails.pop(rollout_id, None)
