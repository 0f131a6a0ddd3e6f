"""How near two summaries of a workload are."""

from dataclasses import asdict
from typing import Final

from simulation.summary import WorkloadSummary

NEAR: Final = 0.10
"""What the benchmark's page allows between recorded and synthetic workload."""

TOKENS_NEAR: Final = 4
"""Observations of 0 to 5 tokens are the recorder's rounding; so few cost nothing."""


def apart(wanted: WorkloadSummary, got: WorkloadSummary) -> list[str]:
    """Quantiles and means that are further apart than they may be."""
    pairs = [
        (f"{name} {part}", value, asdict(got)[name][part])
        for name, spread in asdict(wanted).items()
        for part, value in spread.items()
    ]
    return [
        f"{name}: {value:.4g} wanted, {other:.4g} found"
        for name, value, other in pairs
        if not is_near(name, value, other)
    ]


def is_near(name: str, wanted: float, got: float) -> bool:
    """Within a tenth, or for observations within a few tokens."""
    tokens = TOKENS_NEAR if name.startswith("new_tokens_of_turn") else 0
    return abs(got - wanted) <= max(NEAR * abs(wanted), tokens)
