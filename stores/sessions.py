"""What every session with the database promises: a stopped process holds up nobody for long.

A process that is stopped (a paused machine, SIGSTOP, a cut line) in the middle of a transaction keeps
its row locks until the server ends the session. Who waits for such a lock is the leader, whose next
look at the leases would end at its own timeout again and again; so each session carries both bounds.

Neither of them runs while the server waits for the rest of a pipeline, with which psycopg sends many
parameter sets: no engine of ours opens one.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.ext.asyncio import AsyncEngine

KEEPER_TIMEOUT_MS: Final = 3_000
"""For heartbeats of leader and keepers: well below a lease, so that one lost try costs no lease."""

POOL_TIMEOUT_MS: Final = 15_000
"""A statement that waits longer sits behind a stopped process; it fails and is tried again."""


def options(timeout_ms: int) -> str:
    """Connection options (libpq `options`): no statement and no idle transaction outlives `timeout_ms`."""
    return f"-c statement_timeout={timeout_ms} -c idle_in_transaction_session_timeout={timeout_ms}"


def forbid_pipelines(engine: AsyncEngine) -> None:
    """Send rows to insert as one statement, and other statements with many parameter sets singly."""
    engine.dialect.use_insertmanyvalues_wo_returning = True
    event.listen(engine.sync_engine, "do_executemany", _send_singly)


def _send_singly(
    cursor: DBAPICursor, statement: str, parameters: Sequence[Any], _context: object
) -> bool:
    for one in parameters:
        cursor.execute(statement, one)
    return True
