"""What happened to sandboxes of this node, on its way to their rows: written in order, in one place.

A fact waits while Postgres is away. It is written before the wishes are read, so that they never tell
of what is over here already.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.tenant_sandboxes import SandboxState
from stores.system import tenant_sandboxes as store
from stores.system.tenant_sandboxes import Ended
from stores.unit_of_work import AsyncConnection, HostFence


@dataclass(frozen=True, slots=True)
class Started:
    """They run."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LetGo:
    """There was no room for them; another node may have some."""

    ids: tuple[str, ...]
    waits_for: str


@dataclass(frozen=True, slots=True)
class Moved:
    """It was paused, or goes on."""

    sandbox_id: str
    state: SandboxState


@dataclass(frozen=True, slots=True)
class Stays:
    """What was wanted cannot be."""

    sandbox_id: str
    state: SandboxState


Fact = Started | LetGo | Moved | Stays | Ended


async def write(connection: AsyncConnection, fence: HostFence, facts: Sequence[Fact]) -> None:
    """Write them in the order in which they happened."""
    for fact in facts:
        match fact:
            case Started(ids):
                await store.started(connection, fence, ids)
            case LetGo(ids, waits_for):
                await store.let_go(connection, fence, ids, waits_for)
            case Moved(sandbox_id, SandboxState.PAUSED):
                await store.paused(connection, fence, sandbox_id)
            case Moved(sandbox_id):
                await store.resumed(connection, fence, sandbox_id)
            case Stays(sandbox_id, state):
                await store.stays(connection, fence, sandbox_id, state)
            case Ended():
                await store.end(connection, fence, fact)
