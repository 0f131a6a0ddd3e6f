"""For how long each try and each grading holds room on this node, told to Postgres by an outbox."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from domain.ids import RolloutId
from domain.sandbox import SandboxPurpose
from infra.clock import Clock
from stores.system import sandboxes
from stores.system.sandboxes import Room
from stores.unit_of_work import AsyncConnection, HostFence


class Rooms(Protocol):
    """What is told when room is taken and given back; neither waits."""

    def taken(self, room: Room) -> None:
        """The room is held from now on."""
        ...

    def given(self, room: Room) -> None:
        """The room is free again."""
        ...


class Unwatched:
    """Nobody counts: a node without a database, in tests."""

    def taken(self, room: Room) -> None:
        """Ignored."""

    def given(self, room: Room) -> None:
        """Ignored."""


@dataclass(frozen=True, slots=True)
class RoomFact:
    """A room was taken or given back at this reading of the monotonic clock."""

    room: Room
    is_taken: bool
    at: float


@dataclass(frozen=True, slots=True)
class WatchedRooms:
    """Dates each fact when it happens and hands it on."""

    clock: Clock
    put: Callable[[RoomFact], None]

    def taken(self, room: Room) -> None:
        """The room is held from now on."""
        self.put(RoomFact(room, is_taken=True, at=self.clock.monotonic()))

    def given(self, room: Room) -> None:
        """The room is free again."""
        self.put(RoomFact(room, is_taken=False, at=self.clock.monotonic()))


@dataclass(frozen=True, slots=True)
class RoomWriter:
    """Writes facts by their age, so that a database that was away shifts none of them."""

    clock: Clock
    fence: HostFence

    async def write(self, connection: AsyncConnection, facts: Sequence[RoomFact]) -> None:
        """Write them in the order in which they happened."""
        for fact in facts:
            age_s = max(0.0, self.clock.monotonic() - fact.at)
            write = sandboxes.begin if fact.is_taken else sandboxes.end
            await write(connection, fact.room, self.fence.host_id, self.fence.epoch, age_s)


def agent_room(rollout_id: str, try_: int) -> Room:
    """Room of a try."""
    return Room(RolloutId(rollout_id), SandboxPurpose.AGENT, try_)


def grader_room(rollout_id: str, epoch: int) -> Room:
    """Room of a rollout's grading."""
    return Room(RolloutId(rollout_id), SandboxPurpose.GRADER, epoch)
