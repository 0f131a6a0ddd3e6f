"""Room on a node in any order of asks, cancels, samples and ends: counted once, nothing left behind."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from domain.sandbox import SandboxPurpose
from sandboxes.core.names import GIB, MIB
from sandboxes.node.account import NodeAccount, RoomAsk, make_account, template_of
from sandboxes.node.slots import NeverFits, Slots
from sandboxes.ports import SandboxStats
from tests.unit.sandboxes.node.made import member

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "cancel", "end", "measure", "turn", "press", "calm"]),
        st.integers(0, 5),
        st.integers(1, 4),
    ),
    max_size=40,
)


@dataclass
class Yard:
    """Groups by number; a group asks again once its former ask is over."""

    account: NodeAccount = field(default_factory=lambda: make_account(4 * GIB, 4.0, 1, True))
    waiting: dict[int, tuple[RoomAsk, "asyncio.Task[None]"]] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.slots = Slots(12, 1, self.account)

    async def act(self, name: str, group: int, amount: int) -> None:
        """One thing happens, then whoever was woken goes on."""
        known = self.waiting.get(group)
        match name:
            case "ask" if known is None:
                purpose = SandboxPurpose.GRADER if group == 0 else SandboxPurpose.AGENT
                spec = template_of("ever", purpose, 512 * MIB)
                keys = tuple(member(i, f"g{group}", purpose) for i in range(amount))
                ask = RoomAsk(purpose, spec, keys)
                task = asyncio.create_task(self.slots.take(purpose, amount, ask))
                self.waiting[group] = ask, task
            case "cancel" if known is not None and not known[1].done():
                known[1].cancel()
            case "end" if known is not None:
                await self.end(group)
            case "measure" | "turn":
                for key in self.account.members():
                    if name == "turn":
                        self.account.turn_ended(key)
                    else:
                        self.account.measure(key, SandboxStats(amount * 60 * MIB, 1))
            case "press" | "calm":
                self.now += 31.0
                self.account.ledger.gate.sample(self.now, 0.06 if name == "press" else 0.0)
                self.account.ledger.gate.sample(self.now + 30.0, 0.06 if name == "press" else 0.0)
        self.slots.admit()
        for _ in range(3):
            await asyncio.sleep(0)

    async def end(self, group: int) -> None:
        """An ask is over: it is withdrawn, or what it got is given back."""
        ask, task = self.waiting.pop(group)
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        elif not task.cancelled() and not isinstance(task.exception(), NeverFits):
            for key in ask.members:
                self.account.end(key, has_finished=True)
            self.slots.give(ask.purpose, len(ask.members))

    def check(self) -> None:
        """Places and memory tell of the same sandboxes, and within their limits."""
        agents = self.slots.taken(SandboxPurpose.AGENT)
        graders = self.slots.taken(SandboxPurpose.GRADER)
        assert agents <= self.slots.capacity - self.slots.reserve
        assert agents + graders <= self.slots.capacity
        assert len(self.account.members()) == agents + graders
        assert self.account.ledger.faults() == []


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_places_and_memory_always_tell_of_the_same_sandboxes(
    actions: list[tuple[str, int, int]],
) -> None:
    async def play() -> None:
        yard = Yard()
        for action in actions:
            await yard.act(*action)
            yard.check()
        for group in list(yard.waiting):
            await yard.end(group)
        yard.check()
        assert yard.account.members() == ()

    asyncio.run(play())
