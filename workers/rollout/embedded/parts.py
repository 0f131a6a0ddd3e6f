"""Parts of a batch that are attended to together, so that short contexts do not pay for long ones.

On a CPU the time of attention is that of the keys read: a row in a part as long as another one's
context reads what it must not see. A chunk's rows are a part each, without the padding of either side.
In a decode step neighbouring rows share a part where one more call would cost more than what they read
in vain. Other devices take the whole batch in one call, as long as its block tables: few distinct shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from workers.rollout.embedded.arena import PAGE_TOKENS, ArenaShape, PagedBatch

CALL_BYTES: Final = 384 * 1024
"""Bytes of keys and values that are read in the time of one more part: 17 us of calls (measured with
torch 2.13 on one core of a server)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows `start` to `stop` of a batch, their first `count` places, against `length` keys."""

    start: int
    stop: int
    count: int
    length: int
    sees_all: bool = False
    """Every query sees every key of the part."""

    def holds(self, rows: int, count: int) -> bool:
        """Whether it is a whole batch of this size."""
        return (self.start, self.stop, self.count) == (0, rows, count)


def parts_of(batch: PagedBatch, shape: ArenaShape) -> tuple[Part, ...]:
    """The parts of a batch in order of its rows; a row without a token may be in none."""
    rows, count = batch.positions.shape
    if batch.tables.device.type != "cpu":
        return (Part(0, rows, count, batch.tables.shape[1] * PAGE_TOKENS),)
    if count > 1:
        return tuple(
            Part(row, row + 1, real, length)
            for row, (real, length) in enumerate(zip(batch.counts, batch.lengths, strict=True))
            if real
        )
    cuts = cut(batch.lengths, CALL_BYTES // shape.token_bytes)
    return tuple(_decoded(batch.lengths[start:stop], start) for start, stop in cuts)


def cut(lengths: Sequence[int], call: int) -> list[tuple[int, int]]:
    """Neighbours together, (start, stop), unless one reads more in vain by that than `call` keys.

    One pass from the left: at most `call` worse for each row than rows that are all by themselves.
    """
    cuts: list[tuple[int, int]] = []
    start, longest = 0, lengths[0]
    for row in range(1, len(lengths)):
        longer = max(longest, lengths[row])
        in_vain = (row - start) * (longer - longest) + longer - lengths[row]
        if in_vain > call:
            cuts.append((start, row))
            start, longest = row, lengths[row]
        else:
            longest = longer
    return [*cuts, (start, len(lengths))]


def _decoded(lengths: Sequence[int], start: int) -> Part:
    longest = max(lengths)
    return Part(start, start + len(lengths), 1, longest, min(lengths) == longest)
