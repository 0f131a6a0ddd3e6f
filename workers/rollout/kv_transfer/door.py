"""How pages come to a host and leave it: both directions, the listener, and the key of this process."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

from domain.ids import RolloutId
from domain.kv_ticket import KvTicket
from workers.rollout.kv_transfer.fetcher import KvFetcher
from workers.rollout.kv_transfer.server import KvServer
from workers.rollout.kv_transfer.transfer import KvTransfer

KEY_BYTES: Final = 32
"""Fresh for each process: a key of one that died opens nothing of the next."""

SWEEP_S: Final = 5.0
"""A copy that nobody fetches stays at most so much longer than it must."""


class KvDoor:
    """Of one host process. `depart(rollout, hop)` is the host's: it makes a rollout leave."""

    def __init__(
        self,
        transfer: KvTransfer,
        depart: Callable[[RolloutId, int], Awaitable[KvTicket]],
        *,
        metrics: Callable[[], bytes] = bytes,
        here: str | None = None,
    ) -> None:
        """`metrics` is what is served to whoever scrapes this host; nothing by default.

        `here` names this machine where tests want pages to travel."""
        self.transfer = transfer
        self.key = secrets.token_hex(KEY_BYTES)
        self.fetcher = KvFetcher(transfer, here=here)
        self._server = KvServer(transfer, self.key, depart, time.time, metrics=metrics)

    @property
    def address(self) -> str:
        """host:port for the snapshot."""
        return self._server.address

    async def run(self) -> None:
        """Serve other hosts, and drop copies whose time is over, until cancellation or `close`."""
        sweeping = asyncio.create_task(self._sweep())
        try:
            await self._server.run()
        finally:
            sweeping.cancel()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.transfer.sweep()

    async def close(self) -> None:
        """Close the door and drop all copies."""
        self._server.stop()
        await self.fetcher.close()
        self.transfer.close()
