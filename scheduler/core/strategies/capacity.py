"""Capacity rules of AReaL and SkyRL: staleness bounded over all that was started, not for one group.

Both count what runs and what was accepted against the batches that may be ahead of the trainer. Ours
(`scheduler.core.pacing`) has the same form with the lag of the engines in it, and enforces the bound of
each group besides. They stand here as functions, so that the difference is a test; no strategy is
named after them, since under the same bound they open what `slime-bounded` opens.
"""

from typing import Final

SKYRL_WORKERS: Final = 768
"""SkyRL's default of trajectories in flight at once."""


def areal_slots(
    version: int, batch: int, started: tuple[int, int], eta: int = 0, running_max: int | None = None
) -> int:
    """Rollouts that AReaL starts now: min(max - running, (eta + version + 1) B - (accepted + running)).

    `areal/infra/staleness_manager.py` (inclusionAI/AReaL, Apache-2.0, 2026-05-21). `started` is
    (accepted, running). Default eta 0, which is synchronous; its documents suggest 4.
    """
    accepted, running = started
    slots = (eta + version + 1) * batch - (accepted + running)
    return slots if running_max is None else min(running_max - running, slots)


def skyrl_slots(step: int, batch: int, started: tuple[int, int], max_staleness: int = 4) -> int:
    """Rollouts that SkyRL starts now: (S + step) x mini batch - (accepted + running), S = 4.

    NovaSky-AI/SkyRL, Apache-2.0, 2026-08-21; steps count from 1, the first is 1. `started` is (accepted,
    running). The bound is soft: a late group is accepted and logged.
    """
    accepted, running = started
    return min((max_staleness + step) * batch - (accepted + running), SKYRL_WORKERS - running)
