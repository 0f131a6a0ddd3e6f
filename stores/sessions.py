"""What every session with the database promises: a stopped process holds up nobody for long.

A process that is stopped (a paused machine, SIGSTOP, a cut line) in the middle of a transaction keeps
its row locks until the server ends the session. Who waits for such a lock is the leader, whose next
look at the leases would end at its own timeout again and again; so each session carries both bounds.
"""

from typing import Final

KEEPER_TIMEOUT_MS: Final = 3_000
"""For heartbeats of leader and keepers: well below a lease, so that one lost try costs no lease."""

POOL_TIMEOUT_MS: Final = 15_000
"""A statement that waits longer sits behind a stopped process; it fails and is tried again."""


def options(timeout_ms: int) -> str:
    """Connection options (libpq `options`): no statement and no idle transaction outlives `timeout_ms`."""
    return f"-c statement_timeout={timeout_ms} -c idle_in_transaction_session_timeout={timeout_ms}"
