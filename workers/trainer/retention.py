"""What a trainer deletes: surplus checkpoints, and weights files that nobody can need again.

Kept in any case: the two newest checkpoints that were read back whole (recovery falls back from the
newest to the one before), the best ones by evaluation, every checkpoint that its user keeps or that
something else needs (`stores.checkpoint_uses`), weights of steps that
the second-newest checkpoint does not cover, and weights that an unfinished evaluation is pinned to.
Group payloads stay: recorded steps can be re-applied from the start for as long as their job exists.
"""

from collections.abc import Mapping, Sequence
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

    async def expire_checkpoints(self, origin: AttemptOrigin, keep: CheckpointSpec) -> None:
        """Delete checkpoints of this attempt that nothing keeps; the row goes first."""
        async with self.database.begin(self.fence) as connection:
            rows = await store.of_attempt(connection, origin.attempt_id)
            kept = await store.starting_points(connection, origin.job_id)
            if keep.keep_best > 0:
                scores = await store.evaluation_scores(connection, origin.attempt_id)
                kept |= best_checkpoints(rows, scores, keep.keep_best)
            surplus = surplus_checkpoints(rows, kept, keep.keep_last)
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


def best_checkpoints(
    rows: Sequence[CheckpointRow], scores: Mapping[int, float | None], count: int
) -> set[CheckpointId]:
    """The `count` ready checkpoints with the best scores, and those whose evaluation is not over yet.

    Of equal scores the newer one counts. A step that was not evaluated is never a best one.
    """
    ready = [row for row in rows if row.state == "ready" and row.step in scores]
    scored = [(score, row) for row in ready if (score := scores[row.step]) is not None]
    scored.sort(key=lambda pair: (-pair[0], -pair[1].step, pair[1].checkpoint_id))
    best = {row.checkpoint_id for _, row in scored[:count]}
    return best | {row.checkpoint_id for row in ready if scores[row.step] is None}


def surplus_checkpoints(
    rows: Sequence[CheckpointRow], kept: AbstractSet[CheckpointId], keep_last: int
) -> tuple[CheckpointRow, ...]:
    """Ready checkpoints, newest first in `rows`, that may go."""
    ready = [row for row in rows if row.state == "ready"]
    beyond = ready[max(keep_last, CHECKPOINTS_MIN) :]
    return tuple(row for row in beyond if row.checkpoint_id not in kept)


def covered_step(rows: Sequence[CheckpointRow]) -> int | None:
    """Step of the second-newest ready checkpoint (of another step), None while there is none."""
    steps = sorted({row.step for row in rows if row.state == "ready"}, reverse=True)
    return steps[1] if len(steps) > 1 else None
