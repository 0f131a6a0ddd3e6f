"""Machines and rollouts with round numbers, so that costs can be computed by hand."""

from typing import Final

from simulation.bound import Machines
from simulation.physics import EnginePhysics
from simulation.workload.trajectory import Tool, Trajectory, Turn

STEP_FLOOR_S: Final = 2.0
"""100 bytes of weights at 100 bytes a second, and a second of overhead."""


def physics(*, kv_capacity_tokens: int = 10, slots: int = 2) -> EnginePhysics:
    """A step costs 2 s and 0.01 s a token held; prefill (100 + 4 c) / 100 s a token."""
    return EnginePhysics(
        weights_bytes=100, kv_bytes_per_token=1, bandwidth=100, step_overhead_s=1,
        kv_capacity_tokens=kv_capacity_tokens, parameters=50, layers=1, width=1,
        prefill_flops=100, slots=slots, host_link_bytes_s=50, network_bytes_s=25, disk_bytes_s=10,
        host_tier_tokens=40,
    )  # fmt: skip


def machines(
    engine: EnginePhysics | None = None,
    *,
    engines: int = 1,
    trainer_tokens_s: float = 1e9,
    update_s: float = 0.0,
    weight_sync_s: float = 0.0,
) -> Machines:
    """One engine, and a trainer that costs nothing unless told otherwise."""
    return Machines(engine or physics(), engines, trainer_tokens_s, update_s, weight_sync_s)


def rollout(*turns: tuple[int, int]) -> Trajectory:
    """Turns of (new tokens, output tokens), a second of a tool between them."""
    *before, last = turns
    inner = (Turn(new, output, Tool.OTHER, 1.0) for new, output in before)
    return Trajectory((*inner, Turn(*last, None, 0.0)))
