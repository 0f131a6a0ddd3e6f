"""A node that knows its memory: it says its room, makes a part whole or declines it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from domain.commands import ForkSandboxes, ReleaseSandboxes
from domain.events import (
    Event,
    ForksDeclined,
    HeldRollout,
    HostJoined,
    NodeReported,
    SandboxReady,
)
from domain.ids import RolloutId
from domain.sandbox import NodeRoom, SandboxTemplate
from tests.simulation.machines import Node
from tests.simulation.rows import task_of

if TYPE_CHECKING:
    from tests.simulation.driver import World

EACH: Final = 50
"""Of one sandbox; the ceiling of the only template."""

TEMPLATE: Final = SandboxTemplate("version/agent", EACH)

REPORT_S: Final = 0.7
DECLINE_S: Final = 0.5

Try = tuple[RolloutId, int]


@dataclass(slots=True)
class RoomyNode(Node):
    """`capacity` bytes; `making` are tries whose sandbox is not ready yet."""

    capacity: int = 0
    making: dict[Try, None] = field(default_factory=dict)
    declined: int = 0
    most: int = 0
    """The most that it ever held."""

    def __post_init__(self) -> None:
        """Reports come for ever."""
        self.after(REPORT_S, self.report)

    @property
    def room(self) -> int:
        """Bytes for more sandboxes."""
        return self.capacity - EACH * (len(self.holds) + len(self.making))

    def snapshot(self) -> list[Event]:
        """All tries that it holds or makes, and its room."""
        held = [HeldRollout(rollout, try_, 0, 0) for rollout, try_ in self.holds]
        held += [HeldRollout(name, try_, 0, 0, is_starting=True) for name, try_ in self.making]
        said = self._said().room
        return [HostJoined(self.host_id, self.epoch, self.kind, None, 0, tuple(held), room=said)]

    def report(self) -> None:
        """Say what room is left, again and again."""
        self.send(self._said())
        self.after(REPORT_S, self.report)

    def fork(self, command: ForkSandboxes) -> None:
        """Make what is new of it, all or none; answer again for what it holds."""
        known = {**self.holds, **self.making}
        fresh = tuple(one for one in command.members if one not in known)
        for rollout, try_ in command.members:
            if (rollout, try_) in self.holds:
                self._say_ready(command, rollout, try_)
        if not fresh:
            return
        is_full = self.room < EACH * len(fresh)
        if is_full or self.world.workload.refuses(self.host_id, command.group_id):
            self.declined += 1
            needed, room = float(EACH * len(fresh)), float(self.room)
            members = (self.host_id, self.epoch, command.group_id, fresh)
            answer = ForksDeclined(*members, "memory.no_room", needed, room)
            self.after(DECLINE_S, lambda: self.send(answer))
            return
        self.making.update(dict.fromkeys(fresh))
        self.most = max(self.most, self.capacity - self.room)
        self.after(self.world.workload.fork_s, lambda: self._made(command, fresh))

    def release(self, command: ReleaseSandboxes) -> None:
        """Nothing of these tries is left."""
        for one in command.members:
            self.holds.pop(one, None)
            self.making.pop(one, None)

    def _made(self, command: ForkSandboxes, fresh: tuple[Try, ...]) -> None:
        for rollout, try_ in fresh:
            if (rollout, try_) in self.making:
                del self.making[rollout, try_]
                self.holds[rollout, try_] = None
                self._say_ready(command, rollout, try_)

    def _say_ready(self, command: ForkSandboxes, rollout: RolloutId, try_: int) -> None:
        task = task_of(command.group_id)
        self.send(SandboxReady(rollout, try_, self.host_id, self.epoch, task))

    def _said(self) -> NodeReported:
        held = EACH * len(self.holds)
        room = NodeRoom(
            capacity_bytes=self.capacity,
            private_bytes=held,
            reserve_bytes=0,
            shared_bytes=0,
            overhead_bytes=0,
            other_bytes=0,
            room_bytes=self.room,
            largest_bytes=self.capacity,
            places=1_000,
            places_max=1_000,
            each_overhead_bytes=0,
            pressure=0.0,
            is_open=True,
        )
        return NodeReported(self.host_id, self.epoch, room)


def nodes_of(world: "World") -> list[RoomyNode]:
    """The live ones."""
    return [one for one in world.machines.values() if isinstance(one, RoomyNode)]
