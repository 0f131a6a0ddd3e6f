"""Looks at every sandbox and at the machine, at intervals, and lets what follows from it happen.

samples -> account -> pressure gate -> ladder -> waiting forks that fit now
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from infra.clock import Clock
from infra.logging import get_logger
from sandboxes.node.machine import Machine, MachineUse
from sandboxes.node.relief import Relief
from sandboxes.node.slots import Slots
from sandboxes.ports import Runtime

SAMPLE_S: Final = 0.75
"""A group's tools may allocate for so long before anybody knows; what packing leaves free takes it."""

SAMPLES_AT_ONCE: Final = 16
"""Between two of these others of the loop have their turn: a sample reads some files of `/proc`."""


@dataclass(slots=True)
class Sampler:
    """The node's eyes. `look` is one round; `run` never ends but by cancellation."""

    runtime: Runtime
    slots: Slots
    relief: Relief
    clock: Clock
    see: Callable[[], MachineUse] = field(default_factory=lambda: Machine().look)
    pressure: float | None = None
    """As last read; None where the kernel does not say it."""
    _looks: int = 0

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await self.clock.sleep(SAMPLE_S)

    async def look(self) -> None:
        """One round."""
        account = self.relief.account
        for number, key in enumerate(account.members()):
            sandbox = self.runtime.get(key)
            if sandbox is not None:
                account.measure(key, sandbox.stats())
            if number % SAMPLES_AT_ONCE == SAMPLES_AT_ONCE - 1:
                await asyncio.sleep(0)
        machine = self.see()
        account.others_use(machine.used_bytes)
        if not self._looks and machine.pressure is None:
            get_logger().warning("node.pressure_unreadable", rule="admission by bytes alone")
        self._looks += 1
        self.pressure = machine.pressure
        now = self.clock.monotonic()
        account.ledger.gate.sample(now, machine.pressure or 0.0)
        self.relief.look(now, machine.swap_free_bytes)
        self.slots.admit()

    def figures(self) -> dict[str, float]:
        """What the leader is told of this node's memory. A pressure of -1 cannot be read."""
        account, relief = self.relief.account, self.relief
        pages = account.ledger.pages
        return {
            "capacity_bytes": float(pages.capacity_bytes),
            "private_bytes": float(pages.private_bytes),
            "swapped_bytes": float(pages.swapped_bytes),
            "shared_bytes": float(pages.shared_bytes),
            "overhead_bytes": float(pages.overhead_bytes),
            "other_bytes": float(pages.other_bytes),
            "room_bytes": account.room_bytes(),
            "pressure": -1.0 if self.pressure is None else self.pressure,
            "is_admitting": float(account.ledger.gate.is_open),
            "paused": float(relief.paused),
            "relief_bytes": float(relief.freed_bytes),
            **{f"rung_{rung.name.lower()}": float(n) for rung, n in relief.done.items()},
            **{f"private_bytes/{name}": float(n) for name, n in account.private_of().items()},
        }
