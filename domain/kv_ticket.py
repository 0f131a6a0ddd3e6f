"""What one engine hands to another instead of computing again: the pages of one rollout.

A ticket says whose keys and values they are, of which ids under which weights, how they lie in memory,
and where they may be read until when. Whoever reads checks all of it; anything that does not fit is a
`KvRefused` with a closed reason, and the tokens are prefilled as if there had been no ticket.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from domain.errors import VenusError
from domain.ids import RolloutId

ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number, by the name of its type."""


class KvFailure(StrEnum):
    """Closed set of reasons why pages were not handed over; each means recompute."""

    UNSUPPORTED = "unsupported"
    """The engine hands out no pages."""
    NO_PAGES = "no_pages"
    """The source holds none of this rollout: evicted, aborted, or never computed there."""
    NO_ROOM = "no_room"
    """The source's room for exports, or the target's for pages, is taken."""
    GONE = "gone"
    """The source knows no such departure: released, fenced by a higher hop, or another process."""
    EXPIRED = "expired"
    FORBIDDEN = "forbidden"
    UNREACHABLE = "unreachable"
    LATE = "late"
    """Not read within its deadline."""
    MALFORMED = "malformed"
    SHORT = "short"
    CHECKSUM = "checksum"
    OTHER_TENANT = "other_tenant"
    """Equal ids of another tenant: nobody finds pages of somebody else."""
    OTHER_WEIGHTS = "other_weights"
    OTHER_LAYOUT = "other_layout"
    OTHER_TOKENS = "other_tokens"


class KvRefused(VenusError):
    """Pages are not handed over; nothing is lost but the time to compute them again."""

    code = "kv_refused"

    def __init__(self, reason: KvFailure, detail: str = "") -> None:
        """Keep the closed reason beside the sentence for people."""
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One page in memory: [layers, key|value, kv_heads, page_tokens, head_dim] of `dtype`."""

    page_tokens: int
    layers: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        numbers = self.layers * 2 * self.kv_heads * self.page_tokens * self.head_dim
        return numbers * ITEM_BYTES[self.dtype]

    def pages(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self.page_tokens)


@dataclass(frozen=True, slots=True)
class KvTicket:
    """Pages of the first `tokens` ids of a rollout's segment, in order of position.

    `path` is sealed shared memory of a process on `machine`; processes elsewhere read ranges of the
    same bytes from the host that issued the ticket. `expires_at` is in seconds of Unix time.
    """

    rollout_id: RolloutId
    tokens: int
    token_sha: str
    """Of the ids that the pages are keys of."""
    weights_sha: str
    layout: KvLayout
    checksums: tuple[str, ...]
    """One for each page."""
    path: str
    machine: str
    expires_at: float
    adapter_sha: str = ""
    """Of the adapter on top of the weights; empty without one."""
    tenant: str = ""
    """Whose rollout it is. An engine takes in no ticket without one, as processes before it wrote them."""

    @property
    def size(self) -> int:
        """Bytes of all pages."""
        return len(self.checksums) * self.layout.page_bytes
