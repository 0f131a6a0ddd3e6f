"""Database handle and fenced transactions: one request or task is one transaction.

A fence is checked at the transaction's start under a share lock on the fencing row, so that nobody
can raise the term or epoch until the transaction has ended: an old writer never commits after a new
one was admitted.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from psycopg.errors import IdleInTransactionSessionTimeout
from sqlalchemy import select
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection as AsyncConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from domain.errors import FencedOut, StoreUnavailable
from domain.ids import HostId
from stores import sessions
from stores import tables as t

POOL_SIZE: Final = 5
"""Per process. Heartbeats and leadership use connections of their own, never this pool."""


@dataclass(frozen=True, slots=True)
class LeaderFence:
    """The write is the leader's; it counts only while `term` leads."""

    term: int


@dataclass(frozen=True, slots=True)
class HostFence:
    """The write is a host's; it counts only while the lease row holds this epoch."""

    host_id: HostId
    epoch: int


Fence = LeaderFence | HostFence


def sqlalchemy_url(url: str) -> str:
    """`postgresql://` as SQLAlchemy spells it for psycopg."""
    return "postgresql+psycopg://" + url.partition("://")[2]


class Database:
    """Connection pool of one process."""

    def __init__(self, url: str, pool_size: int = POOL_SIZE) -> None:
        self.url = url
        self._engine: AsyncEngine = create_async_engine(
            sqlalchemy_url(url),
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_pre_ping=True,
            connect_args={
                "options": sessions.options(sessions.POOL_TIMEOUT_MS),
                "connect_timeout": 5,
            },
        )
        sessions.forbid_pipelines(self._engine)

    @asynccontextmanager
    async def begin(self, fence: Fence | None = None) -> AsyncIterator[AsyncConnection]:
        """A transaction, committed at the end of the block. Raises FencedOut before any write.

        A database that is away, also in mid block or at the commit, raises StoreUnavailable.
        """
        try:
            async with self._engine.begin() as connection:
                if fence is not None:
                    await check_fence(connection, fence)
                yield connection
        except (OperationalError, InterfaceError, PoolTimeout) as error:
            raise StoreUnavailable(str(error.__cause__ or error)) from error
        except InternalError as error:
            if not isinstance(error.orig, IdleInTransactionSessionTimeout):
                raise
            raise StoreUnavailable("this process stood still in mid transaction") from error

    async def close(self) -> None:
        """Close all pooled connections."""
        await self._engine.dispose()


async def check_fence(connection: AsyncConnection, fence: Fence) -> None:
    """Hold the fencing row for the rest of the transaction, or raise FencedOut.

    The lock keeps the row's keys, to which epoch and term belong: whoever raises them waits for this
    transaction. Renewals and heartbeats change no key and pass; with a lock that they wait for, a host
    that is busy writing would starve its own lease.
    """
    match fence:
        case LeaderFence(term=term):
            query = select(t.leadership.c.term).where(t.leadership.c.term == term)
        case HostFence(host_id=host, epoch=epoch):
            query = select(t.host_lease.c.epoch).where(
                t.host_lease.c.id == host,
                t.host_lease.c.epoch == epoch,
                t.host_lease.c.owner.is_not(None),
            )
    if (await connection.execute(query.with_for_update(read=True, key_share=True))).first() is None:
        raise FencedOut(str(fence))
