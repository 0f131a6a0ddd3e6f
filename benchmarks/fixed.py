"""The fixed numbers of the scheduling benchmark, read from `fixed.toml` and from nowhere else.

Engines, regimes, workload, costs of a step, seeds and batches. `Fixed.sha256` is the digest of the
file as it lies in the tree; every report prints it, so that two reports can be told comparable.
"""

import hashlib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from simulation.physics import PREFILL_TOKENS_PER_STEP, EnginePhysics
from simulation.workload.workload import WorkloadShape

FIXED_FILE: Final = Path(__file__).with_name("fixed.toml")


@dataclass(frozen=True, slots=True)
class Regime:
    """One row of the benchmark; run with the host tier off and on, it makes two cells."""

    name: str
    groups_per_batch: int
    spread: float
    tool_factor: float
    async_ratio: float
    max_staleness: int
    engine: str
    engines: int
    base: str
    """Stem of the traces that base trajectories are drawn from, or that the generator is fitted to."""
    trainer_tokens_s: float

    @property
    def groups_open_max(self) -> int:
        """Groups that may be unfinished at once, whatever the strategy."""
        return math.ceil(self.async_ratio * self.groups_per_batch)


@dataclass(frozen=True, slots=True)
class RunSize:
    """How much of the benchmark is run."""

    batches: int
    seeds: tuple[int, ...]
    regimes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Everything that no strategy may choose."""

    engines: Mapping[str, EnginePhysics]
    regimes: Mapping[str, Regime]
    full: RunSize
    quick: RunSize
    rollouts_per_group: int
    first_prompt_tokens: int
    context_tokens_max: int
    output_jitter: float
    weight_sync_s: float
    update_s: float
    sha256: str

    def physics_of(self, regime: Regime) -> EnginePhysics:
        """The engine of a regime."""
        return self.engines[regime.engine]

    def shape_of(self, regime: Regime) -> WorkloadShape:
        """The workload of a regime."""
        return WorkloadShape(
            rollouts_per_group=self.rollouts_per_group,
            spread=regime.spread,
            tool_factor=regime.tool_factor,
            output_jitter=self.output_jitter,
            first_prompt_tokens=self.first_prompt_tokens,
            context_tokens_max=self.context_tokens_max,
        )


@cache
def fixed() -> Fixed:
    """The numbers in the tree."""
    return read_fixed(FIXED_FILE.read_bytes())


def read_fixed(content: bytes) -> Fixed:
    """The numbers of a file's content; a name that nothing reads is a `TypeError` or `KeyError`."""
    table = tomllib.loads(content.decode())
    steps, tiers, workload = table["steps"], table["tiers"], table["workload"]
    assert steps["prefill_tokens_per_step"] == PREFILL_TOKENS_PER_STEP
    rates = {name: row.pop("trainer_tokens_s") for name, row in table["engines"].items()}
    usual = table["usual"]
    regimes = {
        name: _regime(name, {**usual, **row}, rates) for name, row in table["regimes"].items()
    }
    full, quick = table["full"], table["quick"]
    return Fixed(
        engines={name: _physics(row, tiers) for name, row in table["engines"].items()},
        regimes=regimes,
        full=RunSize(full["batches"], tuple(full["seeds"]), tuple(regimes)),
        quick=RunSize(quick["batches"], tuple(quick["seeds"]), tuple(quick["regimes"])),
        **workload,
        weight_sync_s=steps["weight_sync_s"],
        update_s=steps["update_s"],
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _physics(row: Mapping[str, Any], tiers: Mapping[str, Any]) -> EnginePhysics:
    rest = dict(row)
    return EnginePhysics(
        bandwidth=rest.pop("memory_bytes_s") * rest.pop("memory_efficiency"),
        disk_bytes_s=tiers["disk_bytes_s"],
        host_tier_tokens=tiers["host_capacity_factor"] * rest["kv_capacity_tokens"],
        **rest,
    )


def _regime(name: str, row: Mapping[str, Any], rates: Mapping[str, float]) -> Regime:
    return Regime(name=name, **{"trainer_tokens_s": rates[row["engine"]], **row})
