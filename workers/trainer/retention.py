"""What a trainer deletes: surplus checkpoints, and weights files that nobody can need again.

Kept in any case: the two newest checkpoints that were read back whole (recovery falls back from the
newest to the one before), those of the best evaluations, every checkpoint that a running attempt
starts from, weights of steps that the second-newest checkpoint does not cover, and weights that an
unfinished evaluation is pinned to.
Group payloads stay: recorded steps can be re-applied from the start for as long as their job exists.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from domain.ids import CheckpointId
from stores.blobs import Blobs
from stores.system import checkpoints as store
from stores.system.checkpoints import CheckpointRow
from stores.system.training import AttemptOrigin
from stores.unit_of_work import Database, HostFence
from workers.trainer.checkpoints import delete_files
from workers.trainer.config import CheckpointSpec

CHECKPOINTS_MIN: Final = 2
"""Recovery needs the newest and, should that one be unreadable, the one before."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Deletes for one host; everything is repeated after a crash without harm."""

    database: Database
    blobs: Blobs
    fence: HostFence

    async def expire_checkpoints(self, origin: AttemptOrigin, spec: CheckpointSpec) -> None:
        """Delete checkpoints of this attempt beyond those that the spec keeps; the row goes first."""
        async with self.database.begin(self.fence) as connection:
            rows = await store.of_attempt(connection, origin.attempt_id)
            started_from = await store.starting_points(connection, origin.job_id)
            surplus = surplus_checkpoints(rows, started_from, spec)
            for row in surplus:
                await store.mark_expired(connection, row.checkpoint_id)
        for row in surplus:
            await delete_files(self.blobs, row.manifest_uri)

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


def surplus_checkpoints(
    rows: Sequence[CheckpointRow], started_from: AbstractSet[CheckpointId], spec: CheckpointSpec
) -> tuple[CheckpointRow, ...]:
    """Ready checkpoints, newest first in `rows`, that may go.

    Kept: the newest, those of the best evaluations (the earlier of equals, which trained less), and
    those that an attempt starts from.
    """
    ready = [row for row in rows if row.state == "ready"]
    scored = [(-row.score, row.step, row.checkpoint_id) for row in ready if row.score is not None]
    best = {checkpoint_id for _, _, checkpoint_id in sorted(scored)[: spec.keep_best]}
    kept = best | started_from
    beyond = ready[max(spec.keep_last, CHECKPOINTS_MIN) :]
    return tuple(row for row in beyond if row.checkpoint_id not in kept)


def covered_step(rows: Sequence[CheckpointRow]) -> int | None:
    """Step of the second-newest ready checkpoint (of another step), None while there is none."""
    steps = sorted({row.step for row in rows if row.state == "ready"}, reverse=True)
    return steps[1] if len(steps) > 1 else None
