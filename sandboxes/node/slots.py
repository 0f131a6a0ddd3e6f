"""Room for sandboxes on one node, first come first served, with a reserve that only graders get.

Invariant: agents <= capacity - reserve, and agents + graders <= capacity. A slot is taken before its
sandbox starts and given back after its processes are gone.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from domain.sandbox import SandboxPurpose


@dataclass(slots=True)
class _Waiter:
    purpose: SandboxPurpose
    count: int
    admitted: asyncio.Future[None]


class Slots:
    """Counts what is taken; waiters of one purpose never overtake each other."""

    def __init__(self, capacity: int, reserve: int) -> None:
        assert 0 < reserve < capacity, "grading needs a reserve, agents need the rest"
        self.capacity = capacity
        self.reserve = reserve
        self._taken = {SandboxPurpose.AGENT: 0, SandboxPurpose.GRADER: 0}
        self._waiters: deque[_Waiter] = deque()

    def taken(self, purpose: SandboxPurpose) -> int:
        """Slots of this purpose."""
        return self._taken[purpose]

    def most(self, purpose: SandboxPurpose) -> int:
        """Slots that this purpose can ever have."""
        return self.capacity - (self.reserve if purpose is SandboxPurpose.AGENT else 0)

    async def take(self, purpose: SandboxPurpose, count: int) -> None:
        """Take slots, waiting for them; cancellation takes none."""
        is_first = not any(waiter.purpose is purpose for waiter in self._waiters)
        if is_first and self._fits(purpose, count):
            self._taken[purpose] += count
            return
        admitted = asyncio.get_running_loop().create_future()
        waiter = _Waiter(purpose, count, admitted)
        self._waiters.append(waiter)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.give(purpose, count)
            else:
                self._waiters.remove(waiter)
            raise

    def give(self, purpose: SandboxPurpose, count: int = 1) -> None:
        """Give slots back and admit whoever fits now."""
        self._taken[purpose] -= count
        assert self._taken[purpose] >= 0, "a slot was given back twice"
        self._admit()

    def describe(self) -> str:
        """The limit in words, for a refusal."""
        agents, graders = self._taken[SandboxPurpose.AGENT], self._taken[SandboxPurpose.GRADER]
        return (
            f"sandboxes: {agents} agents and {graders} graders of {self.capacity},"
            f" {self.reserve} reserved for grading"
        )

    def _fits(self, purpose: SandboxPurpose, count: int) -> bool:
        total = sum(self._taken.values())
        return total + count <= self.capacity and self._taken[purpose] + count <= self.most(purpose)

    def _admit(self) -> None:
        stuck: set[SandboxPurpose] = set()
        for waiter in list(self._waiters):
            if waiter.purpose in stuck or not self._fits(waiter.purpose, waiter.count):
                stuck.add(waiter.purpose)
                continue
            self._waiters.remove(waiter)
            self._taken[waiter.purpose] += waiter.count
            waiter.admitted.set_result(None)
