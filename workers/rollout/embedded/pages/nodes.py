"""Nodes of the radix tree, the trajectories that refer to them, the leases of running turns.

A node is one page of a context: up to 16 tokens whose keys exist. Its digest covers the namespace and all
tokens before it, so that equal digests mean equal keys; a page that is not full, or whose keys were made
by more than one set of weights, has none and is found by its own trajectory only.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from itertools import takewhile
from typing import Final

from domain.ids import RolloutId
from kv.ranks import RankClass, compose

PAGE_TOKENS: Final = 16
"""Tokens of a page; the arena's pages are as long."""

_DIGEST_BYTES: Final = 16
"""Two different prefixes never meet in 128 bits."""


WORST_RANK: Final = compose(RankClass.NORMAL + 1, 0, 0) - 1
"""Nobody's rank is worse (`kv.ranks`)."""


class KvClass(StrEnum):
    """How dear a page is: what goes first stands first (`scheduling.md` section 5)."""

    UNUSED = "unused"
    LOW_REF = "low_ref"
    HIGH_REF = "high_ref"


class Place(StrEnum):
    """Tiers, nearest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Namespace:
    """Who may share pages: one tenant, at one sha of base and adapter weights."""

    tenant: str
    weights_sha: str

    @property
    def root(self) -> bytes:
        """What the digests of first pages are chained to."""
        text = f"{len(self.tenant)}:{self.tenant}:{self.weights_sha}"
        return blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def digest_of(before: bytes, tokens: Sequence[int]) -> bytes:
    """Digest of a full page behind the page with digest `before`."""
    assert len(tokens) == PAGE_TOKENS
    return blake2b(before + array("q", tokens).tobytes(), digest_size=_DIGEST_BYTES).digest()


def digests_of(namespace: Namespace, tokens: Sequence[int]) -> tuple[bytes, ...]:
    """Digests of all full pages of a context."""
    found: list[bytes] = []
    before = namespace.root
    for end in range(PAGE_TOKENS, len(tokens) + 1, PAGE_TOKENS):
        before = digest_of(before, tokens[end - PAGE_TOKENS : end])
        found.append(before)
    return tuple(found)


def pages_for(tokens: int) -> int:
    """Pages that so many tokens take."""
    return -(-tokens // PAGE_TOKENS)


@dataclass(slots=True, eq=False)
class Copy:
    """A page in an outer tier. Usable once its store completed, and only if the sum agrees."""

    place: Place
    slot: int
    is_ready: bool = False
    checksum: int = 0


@dataclass(slots=True, eq=False)
class Trajectory:
    """A live rollout as the engine knows it: its rank and the pages of its last turn."""

    rollout_id: RolloutId
    rank: int = 0
    is_low: bool = False
    kept_until: float = 0.0
    leases: int = 0
    path: list["Node"] = field(default_factory=list)
    is_private: bool = False
    """Weights changed since its first page was made: its pages are found by itself alone."""
    lineage: str = ""
    """What its pages were made for: the tenant and the adapter by name, in all of its versions."""


@dataclass(slots=True, eq=False)
class Node:
    """One page: on the device (`page`), in an outer tier (`copy`), or gone (neither)."""

    key: int
    """Ends every order; numbers are given once."""
    namespace: Namespace
    parent: "Node | None"
    page: int | None
    tokens: tuple[int, ...] = ()
    digest: bytes | None = None
    copy: Copy | None = None
    is_coming: bool = False
    """Its page is taken, its content is on the way from an outer tier."""
    locks: int = 0
    last_used: float = 0.0
    children: dict[int, "Node"] = field(default_factory=dict)
    device_children: int = 0
    references: dict[RolloutId, Trajectory] = field(default_factory=dict)

    @property
    def is_alive(self) -> bool:
        """Whether its keys exist anywhere."""
        return self.page is not None or self.copy is not None

    @property
    def is_usable(self) -> bool:
        """Whether its keys can be read on the device now."""
        return self.page is not None and not self.is_coming

    @property
    def is_stored(self) -> bool:
        """Whether its keys can be read in an outer tier now."""
        return self.copy is not None and self.copy.is_ready

    @property
    def is_unused(self) -> bool:
        """No live trajectory refers to it."""
        return not self.references

    @property
    def rank(self) -> int:
        """The best rank among the trajectories that refer to it."""
        return min((one.rank for one in self.references.values()), default=WORST_RANK)

    @property
    def kv_class(self) -> KvClass:
        """The dearest class among its references."""
        if not self.references:
            return KvClass.UNUSED
        is_low = all(one.is_low for one in self.references.values())
        return KvClass.LOW_REF if is_low else KvClass.HIGH_REF

    def is_kept(self, now: float) -> bool:
        """Whether somebody asked to evict it after all others."""
        return any(one.kept_until > now for one in self.references.values())


@dataclass(slots=True, eq=False)
class Lease:
    """The pages of a running turn: node i holds positions 16 i to 16 i + 15, all locked while running.

    `length` tokens have keys that the table knows of; the engine may be ahead of it inside a page.
    """

    key: int
    trajectory: Trajectory
    namespace: Namespace
    nodes: list[Node] = field(default_factory=list)
    length: int = 0
    found: int = 0
    """Leading nodes that were there when the turn started."""
    is_private: bool = False
    """Its weights changed on the way: nobody else may ever match what it computes."""
    lineage: str = ""
    """That of its trajectory, once it is kept."""
    is_parked: bool = False
    parked: list[tuple[int, ...]] = field(default_factory=list)
    """What its pages held when it was parked: a fork of its rollout may have gone on in the last one."""

    @property
    def pages(self) -> list[int]:
        """Its block table; of a turn that is not parked."""
        return [node.page for node in self.nodes if node.page is not None]

    @property
    def room(self) -> int:
        """Tokens that its pages hold."""
        return len(self.nodes) * PAGE_TOKENS


def usable(path: Iterable[Node]) -> list[Node]:
    """The leading nodes whose keys can be read on the device now."""
    return list(takewhile(lambda node: node.is_usable, path))


def common(a: Iterable[int], b: Iterable[int]) -> int:
    """How many leading ids agree."""
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count
