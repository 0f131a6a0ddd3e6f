"""The parts of a node that serve tenants' sandboxes, put together."""

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

from domain.errors import FencedOut, StoreUnavailable
from domain.sandbox import MemberKey
from domain.tenant_sandboxes import TENANT_LIMITS
from infra.clock import SystemClock
from infra.logging import get_logger
from infra.proofs import fresh_nonce
from infra.settings import Settings
from sandboxes.node.sampler import Sampler
from sandboxes.ports import Runtime
from stores.system import tenant_sandboxes as store
from stores.unit_of_work import Database, HostFence
from workers.fleet.tenants.calls import TenantCalls
from workers.fleet.tenants.door import Door
from workers.fleet.tenants.keeper import LOOK_S, TenantSandboxes
from workers.fleet.tenants.starts import Starter, most_of


@dataclass(slots=True)
class Tenants:
    """`open` the door, `run` until cancelled, `close`."""

    settings: Settings
    sandboxes: TenantSandboxes
    door: Door
    key: bytes
    most: int
    _address: str = ""

    @property
    def broken(self) -> "asyncio.Future[None]":
        """Fails when background work meets a defect."""
        return self.sandboxes.broken

    async def open(self) -> None:
        """Listen; nobody knows the address before `run` has written it down."""
        self._address = await self.door.open()

    async def run(self) -> None:
        """Write the door down, then look for ever."""
        while not await self._written():
            await self.sandboxes.clock.sleep(LOOK_S)
        await self.sandboxes.run()

    async def close(self) -> None:
        """Hang up, and stop what works for tenants."""
        await self.door.close()
        await self.sandboxes.close()

    def lose(self, member: MemberKey, cause: str) -> bool:
        """The node takes a sandbox away; False when it is no tenant's."""
        return self.sandboxes.lose(member, cause)

    async def _written(self) -> bool:
        values = {
            "address": self._address,
            "key": self.key,
            "runtime": self.settings.sandbox_kind.value,
            "facts": self._facts(),
        }
        fence = self.sandboxes.fence
        try:
            async with self.sandboxes.database.begin(fence) as connection:
                await store.open_door(connection, fence, values)
        except StoreUnavailable as away:
            get_logger().warning("door.store_away", cause=str(away))
            return False
        except FencedOut:
            return False
        return True

    def _facts(self) -> dict[str, Any]:
        """What is told of the node's runtime."""
        can = self.sandboxes.runtime.capabilities()
        return {"can": asdict(can), "limits": asdict(TENANT_LIMITS), "most": self.most}


def make_tenants(
    settings: Settings,
    database: Database,
    fence: HostFence,
    runtime: Runtime,
    sampler: Sampler,
) -> Tenants:
    """All of it; the door has a key of its own, drawn anew with each agent."""
    most = most_of(sampler.slots)
    sandboxes = TenantSandboxes(
        database=database,
        fence=fence,
        runtime=runtime,
        relief=sampler.relief,
        starter=Starter(runtime, sampler.slots, most),
        clock=SystemClock(),
        settings=settings,
    )
    key = fresh_nonce()
    return Tenants(settings, sandboxes, Door(TenantCalls(sandboxes), fence, key), key, most)
