"""What a trainer deletes: surplus checkpoints, and weights files that nobody can need again.

Kept in any case: the two newest checkpoints that were read back whole (recovery falls back from the
newest to the one before), the best ones by evaluation, every checkpoint that its user keeps or that
something else needs (`stores.checkpoint_uses`), weights of steps that
the second-newest checkpoint does not cover, and weights that an unfinished evaluation is pinned to.
What was kept for an evaluation that ended last is for the leader (`stores.system.retention`).
Group payloads stay: recorded steps can be re-applied from the start for as long as their job exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stores.blobs import Blobs
from stores.system import checkpoints as store
from stores.system.checkpoints import CheckpointRow
from stores.system.retention import Keep, surplus_of
from stores.system.training import AttemptOrigin
from stores.unit_of_work import Database, HostFence
from workers.trainer.checkpoints import delete_files
from workers.trainer.config import CheckpointSpec


@dataclass(frozen=True, slots=True)
class Retention:
    """Deletes for one host; everything is repeated after a crash without harm."""

    database: Database
    blobs: Blobs
    fence: HostFence

    async def expire_checkpoints(self, origin: AttemptOrigin, keep: CheckpointSpec) -> None:
        """Delete checkpoints of this attempt that nothing keeps; the row goes first."""
        async with self.database.begin(self.fence) as connection:
            surplus = await surplus_of(
                connection,
                origin.job_id,
                origin.attempt_id,
                Keep(keep.keep_last, keep.keep_best),
                is_over=False,
            )
            for row in surplus:
                await store.mark_expired(connection, row.checkpoint_id)
        for row in surplus:
            await delete_files(self.blobs, row.manifest_uri)
        async with self.database.begin(self.fence) as connection:
            for row in surplus:
                await store.mark_cleaned(connection, row.checkpoint_id)

    async def delete_covered_weights(self, origin: AttemptOrigin) -> None:
        """Delete published weights of steps before the second-newest ready checkpoint."""
        async with self.database.begin(self.fence) as connection:
            rows = await store.of_attempt(connection, origin.attempt_id)
            step = covered_step(rows)
            if step is None:
                return
            paths = await store.published_before(connection, origin.attempt_id, step)
        for weights, probe in paths:
            await self.blobs.delete(weights)
            await self.blobs.delete(probe)


def covered_step(rows: Sequence[CheckpointRow]) -> int | None:
    """Step of the second-newest ready checkpoint (of another step), None while there is none."""
    steps = sorted({row.step for row in rows if row.state == "ready"}, reverse=True)
    return steps[1] if len(steps) > 1 else None
