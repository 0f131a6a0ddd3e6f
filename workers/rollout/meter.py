"""How the time of one engine host is shared among its rollouts.

While turns are generated, each instant is shared equally among them; while none is and tools run,
equally among the rollouts whose tools the engine waits for. So the shares of all rollouts add up to
the time in which the host was busy, and to that in which it stood still for tools: never to more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Use:
    """Shares of one placement, in seconds."""

    engine_s: float = 0.0
    tool_wait_s: float = 0.0


class HostMeter:
    """Two running sums: what one more sharer would have got of each kind of time since the start."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._read_at = monotonic()
        self._generating = 0
        self._in_tools = 0
        self._engine_s = 0.0
        self._tool_wait_s = 0.0

    @contextmanager
    def generating(self, use: Use) -> Iterator[None]:
        """A turn of this placement is generated."""
        self._read()
        self._generating += 1
        since = self._engine_s
        try:
            yield
        finally:
            self._read()
            self._generating -= 1
            use.engine_s += self._engine_s - since

    @contextmanager
    def in_tool(self, use: Use) -> Iterator[None]:
        """This placement waits for its environment."""
        self._read()
        self._in_tools += 1
        since = self._tool_wait_s
        try:
            yield
        finally:
            self._read()
            self._in_tools -= 1
            use.tool_wait_s += self._tool_wait_s - since

    def _read(self) -> None:
        now = self._monotonic()
        passed, self._read_at = now - self._read_at, now
        if self._generating:
            self._engine_s += passed / self._generating
        elif self._in_tools:
            self._tool_wait_s += passed / self._in_tools
