"""Figures of an engine host, and the watch over its engine's thread."""

from typing import Final

from infra.clock import Clock
from workers.rollout.outcomes import EngineFault
from workers.rollout.ports import Engine

WINDOW_S: Final = 2.0
"""Shortest span over which a rate is computed; heartbeats come more often than that."""


class Figures:
    """Gauges of now, and tokens per second since the window before."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._since_s = clock.monotonic()
        self._sampled = 0
        self._tokens_per_s = 0.0

    def read(self) -> dict[str, float]:
        """Figures for a heartbeat."""
        stats, now = self._engine.stats(), self._clock.monotonic()
        if now - self._since_s >= WINDOW_S:
            self._tokens_per_s = (stats.sampled_tokens - self._sampled) / (now - self._since_s)
            self._since_s, self._sampled = now, stats.sampled_tokens
        return {
            "tokens_per_s": self._tokens_per_s,
            "sampled_tokens": float(stats.sampled_tokens),
            "cached_tokens": float(stats.cached_tokens),
            "prefilled_tokens": float(stats.prefilled_tokens),
            "active": float(stats.active),
            "waiting": float(stats.waiting),
            "slots": float(stats.slots),
            "kv_pages": float(stats.kv_pages),
            "kv_pages_used": float(stats.kv_pages_used),
            "kv_pages_held": float(stats.kv_pages_held),
            "retained_rollouts": float(stats.retained_rollouts),
            "busy_s": stats.busy_s,
            "engaged_s": stats.engaged_s,
            "prefill_s": stats.prefill_s,
            "steps": float(stats.steps),
            "attended_tokens": float(stats.attended_tokens),
            "kv_read_tokens": float(stats.kv_read_tokens),
            "kv_usage": stats.kv_pages_used / stats.kv_pages if stats.kv_pages else 0.0,
            "policy_version": float(stats.version),
            "evictions": float(stats.evictions),
            "preemptions": float(stats.preemptions),
            "sync_failures": float(stats.sync_failures),
            **stats.kv.figures(),
        }


class EngineWatch:
    """Tells a decoding engine from one whose thread is stuck: `steps` must rise while turns run."""

    def __init__(self, engine: Engine, clock: Clock, bound_s: float) -> None:
        self._engine = engine
        self._clock = clock
        self._bound_s = bound_s
        self._steps = -1
        self._moved_s = clock.monotonic()

    def check(self) -> None:
        """Raise EngineFault when turns have run for longer than the bound without a decode step."""
        stats, now = self._engine.stats(), self._clock.monotonic()
        is_idle = stats.paused or not (stats.active or stats.waiting)
        if is_idle or stats.steps != self._steps:
            self._steps, self._moved_s = stats.steps, now
            return
        if now - self._moved_s > self._bound_s:
            raise EngineFault(f"no decode step for {now - self._moved_s:.1f} s")
