"""Room for sandboxes on one node, first come first served, with a reserve that only graders get.

Invariant: agents <= capacity - reserve, and agents + graders <= capacity; branches count as agents.
Where the node has an account of its memory, bytes decide as well, and the count is only a cap. A slot is
taken before its sandbox starts and given back after its processes are gone.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from domain.errors import VenusError
from domain.sandbox import SandboxPurpose
from sandboxes.core.admission import Refused, Why
from sandboxes.node.account import NodeAccount, RoomAsk, in_words


class NeverFits(VenusError):
    """An empty node like this would refuse it, too; waiting does not help."""

    code = "never_fits"

    def __init__(self, refused: Refused) -> None:
        """Keep the refusal beside the sentence for people."""
        super().__init__(in_words(refused))
        self.refused = refused


@dataclass(slots=True)
class _Waiter:
    purpose: SandboxPurpose
    count: int
    ask: RoomAsk | None
    admitted: asyncio.Future[None]


class Slots:
    """Counts what is taken; waiters of one purpose never overtake each other."""

    def __init__(self, capacity: int, reserve: int, account: NodeAccount | None = None) -> None:
        assert 0 < reserve < capacity, "grading needs a reserve, agents need the rest"
        self.capacity = capacity
        self.reserve = reserve
        self.account = account
        self._taken = dict.fromkeys(SandboxPurpose, 0)
        self._waiters: deque[_Waiter] = deque()

    def taken(self, purpose: SandboxPurpose) -> int:
        """Slots of this purpose."""
        return self._taken[purpose]

    def most(self, purpose: SandboxPurpose) -> int:
        """Slots that this purpose can ever have."""
        return self.capacity - (0 if purpose is SandboxPurpose.GRADER else self.reserve)

    def free(self, purpose: SandboxPurpose) -> int:
        """Slots that this purpose could take now."""
        total, graders = sum(self._taken.values()), self._taken[SandboxPurpose.GRADER]
        ours = graders if purpose is SandboxPurpose.GRADER else total - graders
        return max(0, min(self.capacity - total, self.most(purpose) - ours))

    def never(self, ask: RoomAsk) -> Refused | None:
        """Why an empty node would not take all of them at once, by what is expected of them."""
        refused = self.refusal(ask)
        return refused if refused is not None and refused.why is Why.NEVER_FITS else None

    def refusal(self, ask: RoomAsk) -> Refused | None:
        """Why memory does not take them now; None where it does, or where nobody counts it."""
        return None if self.account is None else self.account.refusal(ask)

    async def take(self, purpose: SandboxPurpose, count: int, ask: RoomAsk | None = None) -> None:
        """Take slots, waiting for them; cancellation takes none.

        `ask` says whose memory it is; without it nothing but the count is asked. Raises NeverFits.
        """
        assert ask is None or (ask.purpose is purpose and len(ask.members) == count)
        if ask is not None and (never := self.never(ask)) is not None:
            raise NeverFits(never)
        is_first = not any(waiter.purpose is purpose for waiter in self._waiters)
        if is_first and self._fits(purpose, count, ask):
            self._begin(purpose, count, ask)
            return
        admitted = asyncio.get_running_loop().create_future()
        waiter = _Waiter(purpose, count, ask, admitted)
        self._waiters.append(waiter)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._undo(waiter)
            else:
                self._waiters.remove(waiter)
            raise

    def give(self, purpose: SandboxPurpose, count: int = 1) -> None:
        """Give slots back and admit whoever fits now; memory is given back by the account's `end`."""
        self._taken[purpose] -= count
        assert self._taken[purpose] >= 0, "a slot was given back twice"
        self.admit()

    def describe(self, ask: RoomAsk | None = None) -> str:
        """The limits in words, for a refusal: memory's if it stops this ask, then the counts."""
        graders = self._taken[SandboxPurpose.GRADER]
        agents = sum(self._taken.values()) - graders
        counts = (
            f"sandboxes: {agents} agents and {graders} graders of {self.capacity},"
            f" {self.reserve} reserved for grading"
        )
        refused = None if ask is None else self.refusal(ask)
        return counts if refused is None else f"{in_words(refused)}; {counts}"

    def admit(self) -> None:
        """Admit whoever fits now: after slots or memory came back, and after each sample."""
        stuck: set[SandboxPurpose] = set()
        for waiter in list(self._waiters):
            if waiter.purpose in stuck or not self._fits(waiter.purpose, waiter.count, waiter.ask):
                stuck.add(waiter.purpose)
                continue
            self._waiters.remove(waiter)
            self._begin(waiter.purpose, waiter.count, waiter.ask)
            waiter.admitted.set_result(None)

    def _fits(self, purpose: SandboxPurpose, count: int, ask: RoomAsk | None) -> bool:
        if count > self.free(purpose):
            return False
        return ask is None or self.refusal(ask) is None

    def _begin(self, purpose: SandboxPurpose, count: int, ask: RoomAsk | None) -> None:
        self._taken[purpose] += count
        if ask is not None and self.account is not None:
            self.account.begin(ask)

    def _undo(self, waiter: _Waiter) -> None:
        if waiter.ask is not None and self.account is not None:
            for key in waiter.ask.members:
                self.account.end(key)
        self.give(waiter.purpose, waiter.count)
