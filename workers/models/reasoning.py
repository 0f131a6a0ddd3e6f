"""Reasoning of a chat format: where it ends in an answer, and what a template makes of it later.

Published reasoning models write `<think> ... </think> answer`; some have the opening mark in the
prompt already, so everything before the closing mark is reasoning. Their templates leave the
reasoning of earlier turns out of the next prompt, from the newest message of the user on: the
prompt then no longer begins with what was sampled, the history is rewritten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workers.models.vocab import Vocabulary


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The marks of a format. `is_dropped`: its template leaves earlier reasoning out."""

    opening: str
    closing: str
    is_dropped: bool

    def split(self, text: str) -> tuple[str, str]:
        """Reasoning and the rest of an answer's text."""
        before, mark, after = text.partition(self.closing)
        if mark:
            return before.removeprefix(self.opening).strip("\n"), after.lstrip("\n")
        if text.startswith(self.opening):
            return text.removeprefix(self.opening).strip("\n"), ""
        return "", text

    def without(
        self, sampled: Sequence[int], vocabulary: Vocabulary, stops: Sequence[int]
    ) -> tuple[int, ...]:
        """The sampled ids of an answer without its reasoning; nothing is tokenised again."""
        ids = tuple(sampled)
        closing = vocabulary.encode(self.closing)
        opening = vocabulary.encode(self.opening)
        place = _find(ids, closing)
        if place is None:
            if ids[: len(opening)] != opening:
                return ids
            return ids[-1:] if ids[-1] in stops else ()
        start = place + len(closing)
        newline = vocabulary.encode("\n")
        while ids[start : start + len(newline)] == newline:
            start += len(newline)
        return ids[start:]


def read_reasoning(record: object) -> Reasoning | None:
    """`reasoning` of a `chat.json`: `{"open", "close", "history": "drop" | "keep"}`, or nothing."""
    if record is None:
        return None
    assert isinstance(record, Mapping), "reasoning is an object"
    opening, closing, history = record["open"], record["close"], record.get("history", "drop")
    assert isinstance(opening, str), "reasoning.open is text"
    assert isinstance(closing, str), "reasoning.close is text"
    assert closing, "reasoning.close is not empty"
    assert history in ("drop", "keep"), "reasoning.history is drop or keep"
    return Reasoning(opening, closing, history == "drop")


def _find(ids: Sequence[int], wanted: Sequence[int]) -> int | None:
    n = len(wanted)
    places = (start for start in range(len(ids) - n + 1) if tuple(ids[start : start + n]) == wanted)
    return next(places, None)
