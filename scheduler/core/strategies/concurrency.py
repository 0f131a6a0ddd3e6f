"""prime-rl's controller of concurrency: multiplicative growth, proportional trims, multiplicative cuts.

Source: `src/prime_rl/orchestrator/concurrency.py` (PrimeIntellect-ai/prime-rl, Apache-2.0; pull requests
3285 and 3307, August 2026). The cap bounds rollouts in flight.

- grow: each finished rollout is a share 1/in flight of a turnover; the cap grows by `growth` for a whole
  one, while KV use is below `grow_below`, nothing waits at the engines, and the cap binds.
- trim: above `soft_usage` the cap falls to in flight x target_usage / use and finished rollouts drain
  the pool; above `hard_usage` the youngest are cancelled too. Not again for `trim_pause_polls`.
- cut: on preemptions, or when a queue longer than `queue_ratio` x running persists for `queue_polls`:
  the cap falls to a share of what is in flight, the excess is cancelled, and cuts rest until the pool
  has drained; a cut within `grace_polls` of that is a `repeated_cut`.

A pure state machine: polls and finished rollouts come in, the excess to cancel goes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What one engine reports in a poll. `usage` is the share of KV that running turns hold."""

    usage: float
    running: int
    waiting: int = 0
    preempted: int = 0
    """Turns that lost their place since the last poll."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The controller's numbers; the defaults are the published ones."""

    growth: float = 1.25
    grow_below: float = 0.6
    binding_share: float = 0.9
    soft_usage: float = 0.8
    hard_usage: float = 0.9
    target_usage: float = 0.7
    trim_pause_polls: float = 6.0
    queue_ratio: float = 0.5
    queue_polls: float = 6.0
    queue_cut: float = 0.9
    preemption_cut: float = 0.8
    repeated_cut: float = 0.5
    grace_polls: float = 6.0
    in_flight_min: float = 8.0
    in_flight_max: float = 1024.0


@dataclass(slots=True)
class Controller:
    """The cap on rollouts in flight, and what the last polls said."""

    limits: Limits
    cap: float
    may_grow: bool = False
    is_draining: bool = False
    is_repeated: bool = False
    """A cut was made and the engines have not been well since."""
    overloaded_polls: int = 0
    trim_pause: float = 0.0
    grace: float = 0.0

    @property
    def in_flight_max(self) -> int:
        """Rollouts that may be in flight now."""
        return int(self.cap)

    def record_finished(self, in_flight: int) -> None:
        """One rollout finished; `in_flight` still counts it."""
        limits = self.limits
        if self.may_grow and in_flight >= limits.binding_share * self.in_flight_max:
            self.cap = self._clamp(self.cap * limits.growth ** (1.0 / max(in_flight, 1)))

    def observe(self, loads: Sequence[EngineLoad], in_flight: int) -> int:
        """Fold one poll; how many of the youngest rollouts to cancel now."""
        if not loads:
            return 0
        usage = max(load.usage for load in loads)
        is_preempted = any(load.preempted > 0 for load in loads)
        is_overloaded = self._note_queue(loads)
        self._note_recovery(in_flight, is_preempted or is_overloaded)
        is_clear = usage < self.limits.grow_below and all(load.waiting == 0 for load in loads)
        self.may_grow = is_clear and not is_preempted and not self.is_draining
        if self.is_draining:
            return 0
        if is_preempted or is_overloaded:
            return self._cut(in_flight, is_overloaded)
        if usage > self.limits.soft_usage and in_flight > 0 and self.trim_pause == 0.0:
            return self._trim(in_flight, usage)
        return 0

    def _note_queue(self, loads: Sequence[EngineLoad]) -> bool:
        running = sum(load.running for load in loads)
        waiting = sum(load.waiting for load in loads)
        is_long = running > 0 and waiting > self.limits.queue_ratio * running
        self.overloaded_polls = self.overloaded_polls + 1 if is_long else 0
        return self.overloaded_polls >= self.limits.queue_polls

    def _note_recovery(self, in_flight: int, is_bad: bool) -> None:
        if self.is_draining and in_flight <= self.in_flight_max and not is_bad:
            self.is_draining, self.grace = False, self.limits.grace_polls
        if self.is_repeated and not self.is_draining:
            self.grace -= 1.0
            self.is_repeated = self.grace > 0.0
        self.trim_pause = max(self.trim_pause - 1.0, 0.0)

    def _cut(self, in_flight: int, is_overloaded: bool) -> int:
        limits = self.limits
        share = limits.queue_cut if is_overloaded else limits.preemption_cut
        share = limits.repeated_cut if self.is_repeated else share
        self.overloaded_polls = 0
        self.is_draining = self.is_repeated = True
        return self._lower(in_flight * share, in_flight)

    def _trim(self, in_flight: int, usage: float) -> int:
        self.trim_pause = self.limits.trim_pause_polls
        excess = self._lower(in_flight * self.limits.target_usage / usage, in_flight)
        return excess if usage > self.limits.hard_usage else 0

    def _lower(self, target: float, in_flight: int) -> int:
        self.cap = min(float(int(self._clamp(target))), self.cap)
        return max(in_flight - self.in_flight_max, 0)

    def _clamp(self, cap: float) -> float:
        return min(max(cap, self.limits.in_flight_min), self.limits.in_flight_max)


def load_of(contexts: Sequence[int], capacity: int, slots: int) -> EngineLoad:
    """The load of an engine whose reports are not at hand, from the contexts of its turns.

    `contexts` are tokens of the turns that generate or wait to, in the order in which they arrived:
    what fits runs, the rest waits.
    """
    used = running = 0
    for tokens in contexts:
        if used + tokens > capacity or running == slots:
            break
        used, running = used + tokens, running + 1
    return EngineLoad(used / capacity, running, len(contexts) - running)
