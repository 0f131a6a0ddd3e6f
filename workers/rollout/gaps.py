"""How long a tool will run, and a turn be generated, from what those of this host took so far."""

from typing import Final

from kv.gaps import GapHistory, Gaps
from workers.models.chat import ParsedAnswer

KINDS_MAX: Final = 64
"""Sets of tools with a history of their own. Names come from a model's text: it may make up any number;
what comes later is judged by the history of all."""

OTHER: Final = "*"
"""Everything that came after so many kinds."""


class ToolGaps:
    """Gaps by the set of tools that an answer calls."""

    def __init__(self) -> None:
        self._history = GapHistory()

    def add(self, answer: ParsedAnswer, seconds: float) -> None:
        """The environment answered this after so many seconds."""
        self._history.add(self._kind(answer), seconds)

    def expected_s(self, answer: ParsedAnswer) -> float:
        """Seconds until the environment will probably answer this; 0 while nothing is known."""
        return self._history.residual_s(self._kind(answer), 0.0)

    def _kind(self, answer: ParsedAnswer) -> str:
        kind = "+".join(sorted({call.name for call in answer.message.tool_calls}))
        known = self._history.by_kind
        return kind if kind in known or len(known) < KINDS_MAX else OTHER


class GenerationTimes:
    """Seconds from the wish for a turn to its last token, the wait for a slot included."""

    def __init__(self) -> None:
        self._taken = Gaps()

    def add(self, seconds: float) -> None:
        """A turn was generated within so many seconds."""
        self._taken.add(seconds)

    def expected_s(self) -> float:
        """The mean of the last ones; 0 while nothing is known."""
        return self._taken.residual_s(0.0)
