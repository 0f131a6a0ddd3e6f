"""The gateway's database: a transaction that writes while a call is served has its audit event.

    edge opens the call -> authentication names the actor -> a transaction writes -> event, commit

There is no other database in the gateway, so that no route can change anything without a trace: the
transaction itself is asked whether it has written.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.audit.call import Call, current
from domain.errors import StoreUnavailable
from infra.ids import IdSource
from infra.logging import get_logger
from stores import audit
from stores.unit_of_work import AsyncConnection, Database, Fence


class AuditedDatabase(Database):
    """Writes the event of the call that is served, once, in the first transaction that changes something."""

    def __init__(self, url: str, pool_size: int, ids: IdSource) -> None:
        super().__init__(url, pool_size)
        self._ids = ids

    @asynccontextmanager
    async def begin(self, fence: Fence | None = None) -> AsyncIterator[AsyncConnection]:
        """A transaction; its audit event commits with it or not at all."""
        call = current()
        is_written = False
        async with super().begin(fence) as connection:
            yield connection
            if call is not None and call.is_due:
                event = call.event(self._ids.new(audit.ID_PREFIX), "done")
                is_written = await audit.append_if_written(connection, event)
        if call is not None and is_written:
            call.is_recorded = True

    async def note_refusal(self, call: Call) -> None:
        """Write down that a proven caller was refused; nothing of the call itself was kept."""
        event = call.event(self._ids.new(audit.ID_PREFIX), "refused")
        call.is_recorded = True
        try:
            async with super().begin() as connection:
                await audit.append(connection, event)
        except StoreUnavailable as error:
            get_logger().warning("audit.refusal_lost", cause=str(error))
