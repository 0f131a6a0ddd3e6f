"""Pages as they travel: bytes of whole pages, and what makes them somebody's.

An arena of any make takes part by reading and writing whole pages as bytes in the order of `KvLayout`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvLayout, KvRefused, KvTicket

CHECKSUM_BYTES = 16
"""A torn or swapped page is found with certainty that nobody needs to doubt; 1 GB/s."""

Content = npt.NDArray[np.uint8]
"""[pages, page_bytes]"""


class PageSource(Protocol):
    """What an export reads from."""

    def read(self, pages: Sequence[int]) -> Content:
        """A copy of these pages."""
        ...


class PageSink(Protocol):
    """What an import writes to."""

    def write(self, pages: Sequence[int], content: Content) -> None:
        """Put what `read` gave into these pages."""
        ...


@dataclass(frozen=True, slots=True)
class KvRun:
    """Whose pages they are: the first `tokens` ids of a rollout's segment under some weights."""

    rollout_id: RolloutId
    token_ids: tuple[int, ...]
    weights_sha: str
    layout: KvLayout
    adapter_sha: str = ""
    tenant: str = ""


def token_sha(token_ids: Sequence[int]) -> str:
    """Identity of a sequence of ids."""
    return hashlib.sha256(np.asarray(token_ids, dtype="<i8").tobytes()).hexdigest()


def checksum(page: Content) -> str:
    """Identity of one page's bytes."""
    return hashlib.blake2b(page.tobytes(), digest_size=CHECKSUM_BYTES).hexdigest()


def verify(ticket: KvTicket, content: Content, first: int = 0) -> None:
    """Compare pages `first`, `first` + 1, ... with the ticket's checksums. Raises KvRefused."""
    for at, page in enumerate(content, first):
        if checksum(page) != ticket.checksums[at]:
            raise KvRefused(KvFailure.CHECKSUM, f"page {at} of {len(ticket.checksums)}")


def fit(ticket: KvTicket, wanted: KvRun, now: float) -> None:
    """Whether pages of this ticket may be used for the beginning of these ids. Raises KvRefused.

    `wanted` says what the engine serves and how its own pages lie.
    """
    layout, tokens = ticket.layout, ticket.tokens
    if now >= ticket.expires_at:
        raise KvRefused(KvFailure.EXPIRED, f"{now - ticket.expires_at:.1f} s ago")
    if ticket.tenant != wanted.tenant:
        raise KvRefused(KvFailure.OTHER_TENANT, "the pages are another tenant's, or nobody's")
    if (ticket.weights_sha, ticket.adapter_sha) != (wanted.weights_sha, wanted.adapter_sha):
        raise KvRefused(KvFailure.OTHER_WEIGHTS, f"of {ticket.weights_sha}")
    if layout != wanted.layout:
        raise KvRefused(KvFailure.OTHER_LAYOUT, f"{layout} is not {wanted.layout}")
    if tokens < 1 or len(ticket.checksums) != layout.pages(tokens):
        raise KvRefused(KvFailure.MALFORMED, f"{len(ticket.checksums)} pages of {tokens} tokens")
    mine = wanted.token_ids[:tokens]
    if ticket.rollout_id != wanted.rollout_id or ticket.token_sha != token_sha(mine):
        raise KvRefused(KvFailure.OTHER_TOKENS, "the ids are not those that the pages are keys of")
