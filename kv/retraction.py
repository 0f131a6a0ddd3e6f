"""Which running sequence gives up when decoding runs out of pages.

By rank: the worst class and value first, then the least progress lost. By arrival, as SGLang does:
the fewest tokens sampled in this turn first, the longest prompt among equals.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from kv.rules import Queue


class Runner(Protocol):
    """A running sequence."""

    @property
    def rank(self) -> int:
        """Smaller is better."""
        ...

    @property
    def sampled(self) -> int:
        """Tokens sampled in this turn so far."""
        ...

    @property
    def prompt(self) -> int:
        """Tokens of its prompt."""
        ...

    @property
    def key(self) -> int:
        """Ends every order."""
        ...


R = TypeVar("R", bound=Runner)


def loser(running: Sequence[R], queue: Queue) -> R:
    """The sequence that is retracted next; `running` is not empty."""
    if queue is Queue.RANK:
        return max(running, key=lambda one: (one.rank, -one.sampled, one.key))
    return min(running, key=lambda one: (one.sampled, -one.prompt, one.key))
