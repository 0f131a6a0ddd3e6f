"""A modelled trainer: tokens a second, one update a step.

A streaming trainer works on each group from its assignment on; one that does not begins with the
whole batch. Either way the update follows the last group's work and `CloseStep`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from simulation.clock import VirtualClock


@dataclass(slots=True)
class ModelledTrainer:
    """One trainer; `publish` is told the step that is durable."""

    clock: VirtualClock
    tokens_s: float
    update_s: float
    streams: bool
    publish: Callable[[int], None]
    free_at: float = 0.0
    pending_tokens: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0
    """Seconds between the end of one step and the first work of the next, and inside steps."""

    def assign(self, tokens: int) -> None:
        """A group of the step being filled may be worked on."""
        if not self.streams:
            self.pending_tokens += tokens
            return
        self._work(tokens)

    def close(self, step: int) -> None:
        """All groups of the step are assigned: finish, update, publish."""
        self._work(self.pending_tokens)
        self.pending_tokens = 0
        done_at = max(self.free_at, self.clock.now) + self.update_s
        self.busy_s += self.update_s
        self.free_at = done_at
        self.clock.at(done_at, lambda: self.publish(step))

    def _work(self, tokens: int) -> None:
        seconds = tokens / self.tokens_s
        begin = max(self.free_at, self.clock.now)
        self.waited_s += begin - max(self.free_at, 0.0)
        self.free_at = begin + seconds
        self.busy_s += seconds
