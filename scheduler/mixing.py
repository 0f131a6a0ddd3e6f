"""Mixing of several sources by weight, as a pure function of seed and ordinal.

Ordinals come in cycles. In a cycle every source has a number of places close to its share, and the
order of the places is shuffled by seed and cycle. So the mix is exact over a cycle, and the n-th task
taken from a source is known without counting through all that came before.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from infra.codec import convert

CYCLE: Final = 240
"""Places of a cycle: shares are kept to half a percent, and it divides by many small numbers."""


@dataclass(frozen=True, slots=True)
class Source:
    """A run of a task list: its first index, its length, and its weight in the mix."""

    first: int
    count: int
    weight: float


@dataclass(frozen=True, slots=True)
class _Share:
    name: str
    count: int
    weight: float


def mixed_sources(stored: object) -> tuple[Source, ...]:
    """Sources that a task list was stored with; those without a task take no part."""
    sources: list[Source] = []
    first = 0
    for share in convert(stored or (), tuple[_Share, ...]):
        if share.count:
            sources.append(Source(first, share.count, share.weight))
        first += share.count
    return tuple(sources)


@lru_cache(maxsize=16)
def places(sources: tuple[Source, ...]) -> tuple[int, ...]:
    """Places of each source in a cycle: largest remainders, at least one each."""
    total = sum(source.weight for source in sources)
    exact = [CYCLE * source.weight / total for source in sources]
    given = [max(1, int(share)) for share in exact]
    by_remainder = sorted(range(len(sources)), key=lambda n: (int(exact[n]) - exact[n], n))
    for number in by_remainder[: max(0, CYCLE - sum(given))]:
        given[number] += 1
    return tuple(given)


@lru_cache(maxsize=64)
def _cycle(counts: Sequence[int], seed: int | str, cycle: int) -> tuple[tuple[int, int], ...]:
    """(source, how many of that source came before in the cycle), place by place."""
    order = [number for number, count in enumerate(counts) for _ in range(count)]
    random.Random(f"mix:{seed}:{cycle}").shuffle(order)
    before = [0] * len(counts)
    drawn_places = []
    for number in order:
        drawn_places.append((number, before[number]))
        before[number] += 1
    return tuple(drawn_places)


def drawn(sources: tuple[Source, ...], seed: int | str, ordinal: int) -> tuple[int, int]:
    """Number of the source of an ordinal, and how many tasks were taken from it before."""
    counts = places(sources)
    cycle, place = divmod(ordinal, sum(counts))
    number, before = _cycle(counts, seed, cycle)[place]
    return number, cycle * counts[number] + before
