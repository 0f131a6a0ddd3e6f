"""User code's prints: they become `log` frames of the instance that printed, never protocol bytes.

Output below Python (a child's, a C library's) goes to the process's standard error, which the
parent reads apart.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from venusrl.env._runner.hidden import longest, strike
from venusrl.env.messages import Json
from venusrl.env.wire import Record, clean_text

LINE_CHARS_MAX: Final = 8192
"""Longer lines are cut into several entries, so that one print cannot make a huge frame."""

ENTRIES_WAITING_MAX: Final = 4096
"""Kept for the parent between two sends; a chatty environment loses the rest, and it is counted."""

current_instance: ContextVar[str] = ContextVar("current_instance", default="")
"""Whose code runs; prints are filed under it."""


class LogStream(io.TextIOBase):
    """Stands in for sys.stdout and sys.stderr; lines that cannot go at once wait for the sender."""

    def __init__(
        self, wake: Callable[[], None], send_now: Callable[[Record], bool] = lambda _: False
    ) -> None:
        super().__init__()
        self._wake = wake
        self._send_now = send_now
        self._open: dict[str, str] = {}
        self._entries: deque[tuple[str, str]] = deque()
        self._dropped = 0

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str) -> int:
        """File text under the current instance, by whole lines."""
        instance = current_instance.get()
        lines = (self._open.pop(instance, "") + text).split("\n")
        rest = lines.pop()
        for line in lines:
            self._add(instance, strike(line))
        # A secret that has only begun at the end of `rest` must not be cut in two.
        if len(rest) > LINE_CHARS_MAX + longest():
            rest = strike(rest)
            while len(rest) > LINE_CHARS_MAX + longest():
                self._add(instance, rest[:LINE_CHARS_MAX])
                rest = rest[LINE_CHARS_MAX:]
        if rest:
            self._open[instance] = rest
        return len(text)

    def take(self) -> list[dict[str, Json]]:
        """The waiting entries as frames, and how many were lost before them."""
        frames = [_frame(instance, text) for instance, text in self._entries]
        self._entries.clear()
        if self._dropped:
            text = f"[{self._dropped} lines lost]"
            frames.append(_frame("", text))
            self._dropped = 0
        return frames

    def end_lines(self, instance: str) -> None:
        """Close the open line of an instance that goes away."""
        rest = self._open.pop(instance, "")
        if rest:
            self._add(instance, strike(rest))

    def _add(self, instance: str, line: str) -> None:
        for start in range(0, max(len(line), 1), LINE_CHARS_MAX):
            part = line[start : start + LINE_CHARS_MAX]
            if not self._entries and self._send_now(_frame(instance, part)):
                continue
            if len(self._entries) >= ENTRIES_WAITING_MAX:
                self._dropped += 1
                continue
            self._entries.append((instance, part))
        self._wake()


def _frame(instance: str, text: str) -> dict[str, Json]:
    return {"t": "log", "instance": instance, "text": clean_text(text)}
