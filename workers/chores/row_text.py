"""Rows of a dataset: what is the same text, and what is only written differently."""

import hashlib
import unicodedata
from typing import Final

ROW_ID_CHARS_MAX: Final = 160
"""A job's task is named DATASET@VERSION/ROW, and a task's name has at most 256 characters."""


def normalised(text: str) -> str:
    """The text without case, punctuation, accents' encoding and spacing.

    Mathematical signs stay: `1+1` and `1-1` are different tasks.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = (" " if unicodedata.category(c)[0] in "ZC" else c for c in folded if _counts(c))
    # What stood apart may be one character once the punctuation between is gone: composed last.
    return " ".join(unicodedata.normalize("NFKC", "".join(kept)).casefold().split())


def _counts(character: str) -> bool:
    """Whether a character can make a text another one: punctuation cannot, except minus and slash."""
    return unicodedata.category(character)[0] != "P" or character in "-/%*"


def key_of(text: str) -> int:
    """64 bits of a text's digest: a million rows collide with a chance below one in ten million."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8], "big")
