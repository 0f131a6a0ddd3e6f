"""Who leads: an advisory lock, and the row that says term, address and key.

A connection of its own, never pooled: the lock lives and dies with its session, and heartbeats must
not queue behind other work.
"""

import contextlib
from dataclasses import dataclass
from typing import Final

import psycopg

from infra.link import LeaderAddress
from infra.proofs import fresh_nonce
from stores import sessions

LOCK_KEY: Final = 0x56454E5553
"""Advisory lock of the scheduler; any fixed number that no other code uses."""


@dataclass(frozen=True, slots=True)
class Term:
    """What a new leader holds."""

    number: int
    key: bytes


class Leadership:
    """One scheduler's claim. Database errors pass through: the caller steps down or tries again."""

    def __init__(self, url: str, ttl_s: float) -> None:
        self._url = url
        self._ttl_s = ttl_s
        self._connection: psycopg.AsyncConnection[tuple[object, ...]] | None = None

    async def try_acquire(self, address: str) -> Term | None:
        """Take the lock and a new term, or None while another session holds it.

        Ends the session of a leader that missed its heartbeats: a stopped process keeps its lock.
        """
        connection = await self._connect()
        row = await (
            await connection.execute("select pg_try_advisory_lock(%s)", (LOCK_KEY,))
        ).fetchone()
        if row is None or not row[0]:
            await connection.execute(
                "select pg_terminate_backend(backend_pid) from leadership"
                " where heartbeat_at < now() - make_interval(secs => %s)"
                " and backend_pid <> pg_backend_pid()",
                (self._ttl_s,),
            )
            return None
        key = fresh_nonce()
        taken = await connection.execute(
            "insert into leadership (id, term, address, key, backend_pid, heartbeat_at)"
            " values (1, 1, %(address)s, %(key)s, pg_backend_pid(), now())"
            " on conflict (id) do update set term = leadership.term + 1, address = %(address)s,"
            " key = %(key)s, backend_pid = pg_backend_pid(), heartbeat_at = now()"
            " where leadership.heartbeat_at < now() - make_interval(secs => %(ttl)s)"
            " or leadership.address = '' returning term",
            {"address": address, "key": key, "ttl": self._ttl_s},
        )
        row = await taken.fetchone()
        if row is None:
            # The lock is free but the last leader may still act by its own clock: wait for it.
            await connection.execute("select pg_advisory_unlock(%s)", (LOCK_KEY,))
            return None
        assert isinstance(row[0], int)
        return Term(row[0], key)

    async def beat(self, term: int) -> bool:
        """Renew; False when the term is not ours any more."""
        connection = await self._connect()
        result = await connection.execute(
            "update leadership set heartbeat_at = now()"
            " where term = %s and backend_pid = pg_backend_pid()",
            (term,),
        )
        return result.rowcount == 1

    async def resign(self, term: int) -> None:
        """Clear the address, so that the next leader need not wait for our heartbeat to age.

        The lock is given back here: the server ends a closed session when it gets to it.
        """
        connection = await self._connect()
        await connection.execute("update leadership set address = '' where term = %s", (term,))
        await connection.execute("select pg_advisory_unlock_all()")
        await self.close()

    async def close(self) -> None:
        """End the session, and the lock with it."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                await self._connection.close()
            self._connection = None

    async def _connect(self) -> "psycopg.AsyncConnection[tuple[object, ...]]":
        if self._connection is None or self._connection.closed:
            self._connection = await psycopg.AsyncConnection.connect(
                self._url,
                autocommit=True,
                connect_timeout=3,
                options=sessions.options(sessions.KEEPER_TIMEOUT_MS),
            )
        return self._connection


async def find_leader(url: str) -> LeaderAddress | None:
    """The row of `leadership` for a host; None while nobody leads or the database is away."""
    try:
        async with await psycopg.AsyncConnection.connect(
            url,
            autocommit=True,
            connect_timeout=3,
            options=sessions.options(sessions.KEEPER_TIMEOUT_MS),
        ) as connection:
            row = await (
                await connection.execute("select term, address, key from leadership")
            ).fetchone()
    except psycopg.Error:
        return None
    if row is None or not row[1]:
        return None
    return LeaderAddress(int(row[0]), str(row[1]), bytes(row[2]))
