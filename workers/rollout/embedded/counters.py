"""Counters of one engine since its start."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Names follow `domain.engine.EngineStats`."""

    steps: int = 0
    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    cached_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    refused: int = 0
    preemptions: int = 0
    retractions: int = 0
    weight_updates: int = 0
    sync_failures: int = 0
    busy_s: float = 0.0
    engaged_s: float = 0.0
    prefill_s: float = 0.0
    attended_tokens: int = 0
    kv_read_tokens: int = 0
