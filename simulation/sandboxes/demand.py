"""What one sandbox holds and uses over its life, second by second, and how it looks in a few numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

MB: Final = 1_000_000
"""Recorded sizes are decimal megabytes."""


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """One sandbox. All series have one value a second and the same length."""

    rss_bytes: tuple[int, ...]
    """Everything that its processes hold, base included."""
    cores: tuple[float, ...]
    turns: tuple[int, ...]
    """0-based turn of its rollout."""
    in_generation: tuple[bool, ...]
    """The model writes and nothing runs in the sandbox; False while a tool runs."""

    def __post_init__(self) -> None:
        lengths = {len(self.cores), len(self.turns), len(self.in_generation)}
        assert lengths == {len(self.rss_bytes)}, "series of one sandbox have one length"

    def __len__(self) -> int:
        return len(self.rss_bytes)


class DemandSource(Protocol):
    """Where sandboxes' lives come from."""

    def draw(self, chance: Random) -> MemoryTrace:
        """One life."""
        ...


@dataclass(frozen=True, slots=True)
class TraceSource:
    """Recorded lives, each as often as any other."""

    traces: Sequence[MemoryTrace]

    def draw(self, chance: Random) -> MemoryTrace:
        """One of them."""
        return self.traces[int(chance.random() * len(self.traces))]


@dataclass(frozen=True, slots=True)
class DemandSummary:
    """In which a fitted demand must agree with the recorded one. Megabytes, cores, seconds."""

    duration_s: float
    """Mean."""
    rss_mean: float
    """Over all seconds of all sandboxes."""
    rss_p50: float
    rss_p90: float
    rss_p99: float
    peak_p50: float
    peak_p90: float
    cores_mean: float
    generation_share: float


def summarize(traces: Iterable[MemoryTrace]) -> DemandSummary:
    """The summary of some lives."""
    every = list(traces)
    rss = sorted(value / MB for trace in every for value in trace.rss_bytes)
    peaks = sorted(max(trace.rss_bytes) / MB for trace in every)
    cores = [value for trace in every for value in trace.cores]
    idle = sum(sum(trace.in_generation) for trace in every)

    def at(ordered: Sequence[float], level: float) -> float:
        return ordered[int(level * (len(ordered) - 1))]

    return DemandSummary(
        duration_s=len(rss) / len(every),
        rss_mean=sum(rss) / len(rss),
        rss_p50=at(rss, 0.5),
        rss_p90=at(rss, 0.9),
        rss_p99=at(rss, 0.99),
        peak_p50=at(peaks, 0.5),
        peak_p90=at(peaks, 0.9),
        cores_mean=sum(cores) / len(cores),
        generation_share=idle / len(rss),
    )
