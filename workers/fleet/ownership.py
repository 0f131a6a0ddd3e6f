"""Postgres's word on who owns a node's tries and attempts: the reaper's port."""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.ids import AttemptId
from sandboxes.node.reaper import Orphans
from sandboxes.node.registry import TryKey
from stores.system.fleet import owned_attempts, owned_tries
from stores.unit_of_work import Database


@dataclass(frozen=True, slots=True)
class PostgresOwnership:
    """Implements `sandboxes.node.reaper.Ownership`."""

    database: Database

    async def orphans(self, tries: Sequence[TryKey], attempts: Sequence[AttemptId]) -> Orphans:
        """Tries that are not their rollout's wanted one any more, attempts that do not run.

        A try above the wanted one is kept: the row that this read may be older than its fork.
        """
        async with self.database.begin() as connection:
            wanted = await owned_tries(connection, [key.rollout_id for key in tries])
            running = await owned_attempts(connection, attempts)
        return Orphans(
            tries=tuple(
                key
                for key in tries
                if key.rollout_id not in wanted or key.try_ < wanted[key.rollout_id]
            ),
            attempts=tuple(attempt for attempt in attempts if attempt not in running),
        )
