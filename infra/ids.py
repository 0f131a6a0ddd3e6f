"""New ids: a prefix and a ULID, sortable by creation time; clock and random source are injected.

Ids that must repeat (groups, rollouts, hosts) are derived in `domain.ids`, never drawn here.
"""

import random
from typing import Final, Protocol

from infra.clock import Clock, SystemClock

CROCKFORD: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Lower-case Crockford base 32: sorts like the number it encodes, without i, l, o, u to misread."""

TIME_CHARACTERS: Final = 10
"""48 bits of milliseconds; enough until the year 10889."""

RANDOM_CHARACTERS: Final = 16
"""80 random bits, as the ULID format has them."""

RANDOM_BITS: Final = RANDOM_CHARACTERS * 5


class RandomBits(Protocol):
    """What ids need of a random source; `random.Random` and `random.SystemRandom` have it."""

    def getrandbits(self, k: int, /) -> int:
        """An integer of `k` random bits."""
        ...


class IdSource:
    """Draws ids that rise strictly, also within 1 ms and when the wall clock steps back."""

    def __init__(self, clock: Clock | None = None, bits: RandomBits | None = None) -> None:
        self._clock = clock or SystemClock()
        self._bits = bits or random.SystemRandom()
        self._last_ms = -1
        self._last_random = 0

    def new(self, prefix: str) -> str:
        """A fresh id such as `job_01k...`; `prefix` comes without its underscore."""
        return f"{prefix}_{self.ulid()}"

    def ulid(self) -> str:
        """26 characters: time, then randomness counted up within one millisecond."""
        now_ms = max(int(self._clock.now().timestamp() * 1000), self._last_ms)
        if now_ms == self._last_ms:
            self._last_random += 1
        else:
            # The top bit stays free, so that counting up inside one millisecond cannot overflow.
            self._last_random = self._bits.getrandbits(RANDOM_BITS - 1)
        self._last_ms = now_ms
        return encode(now_ms, TIME_CHARACTERS) + encode(self._last_random, RANDOM_CHARACTERS)


def encode(value: int, characters: int) -> str:
    """`value` in base 32, left-padded to `characters`."""
    digits = []
    for _ in range(characters):
        value, digit = divmod(value, 32)
        digits.append(CROCKFORD[digit])
    assert value == 0, "value does not fit its field"
    return "".join(reversed(digits))
