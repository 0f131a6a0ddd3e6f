"""Stop strings in sampled tokens: what counts as text, and how many tokens a string may take.

Compared as bytes of UTF-8, where half a character is the beginning of nothing but itself. A token
without text (a special one, or one that the vocabulary does not name) ends what was text before it.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from workers.models.vocab import BYTES, VocabKind, Vocabulary

NO_TEXT: Final = b"\xff"
"""Stands for a token without text: no string has this byte in UTF-8."""

LENIENT: Final = "surrogatepass"
"""A request may ask for half a surrogate pair; that is a string which is never found."""


class StopText:
    """Looks for stop strings over one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if vocabulary.kind is VocabKind.BYTE:
            plain = [bytes([one]) for one in range(BYTES)]
        else:
            plain = [one.encode("utf-8", LENIENT) for one in vocabulary.characters]
        self._plain = plain

    def ends(self, sampled: npt.NDArray[np.int64], stops: Sequence[str]) -> bool:
        """Whether the newest of these tokens completes one of the strings."""
        wanted = [stop.encode("utf-8", LENIENT) for stop in stops]
        # Every token with text is at least one byte of it.
        longest = max(map(len, wanted))
        tail = b"".join(map(self._text, sampled[-longest:].tolist()))
        return any(tail.endswith(stop) for stop in wanted)

    def _text(self, token: int) -> bytes:
        return self._plain[token] if token < len(self._plain) else NO_TEXT
