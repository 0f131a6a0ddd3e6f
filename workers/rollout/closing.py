"""The natural end of a rollout: seal, upload, one closing transaction. Each part may be repeated.

The trajectory is stored before the row names it; the compare-and-set on (try, hop) decides against
every other closer. Postgres and the object store may be away: the close waits, without an end of
its own, because the host's lease is the bound and the rollout stays in `held` meanwhile. A rollout
that was closed, or moved on, by somebody else is dropped without a word.
"""

import json
from dataclasses import dataclass
from typing import Final, Protocol

from domain.errors import ObjectNotWritten, PayloadUnreadable, StoreUnavailable
from domain.events import RolloutClosed
from domain.ids import JobId, TaskId
from domain.states import End
from domain.trajectory import Trajectory
from domain.wire import Place, Sealed
from infra import failpoints
from infra.clock import Clock
from infra.codec import to_msgpack
from infra.logging import get_logger
from infra.names import trajectory_path
from stores.blobs import Blob, Blobs
from stores.system.rollouts import CloseOutcome, RolloutEnd, close_rollout
from stores.unit_of_work import Database, HostFence
from workers.rollout import seams
from workers.rollout.agent_client import AgentLost, AgentRefusal, NodeAgent
from workers.rollout.episode import Ending, Episode
from workers.rollout.outcomes import Superseded, TryEnded, failure_of

BACKOFF_S: Final = 0.1
"""First pause before a store is asked again; doubled each time."""

BACKOFF_MAX_S: Final = 2.0
"""Longest pause: within it of a store's return, all rollouts that waited are closed."""


class RolloutCloser(Protocol):
    """What the host asks at a natural end."""

    async def close(
        self, place: Place, episode: Episode, ending: Ending, agent: NodeAgent
    ) -> RolloutClosed:
        """Close and say so. Raises Superseded when the compare-and-set lost, TryEnded, FencedOut."""
        ...


@dataclass(frozen=True, slots=True)
class Closer:
    """`RolloutCloser` over the stores of one host."""

    database: Database
    fence: HostFence
    blobs: Blobs
    job_id: JobId
    clock: Clock

    async def close(
        self, place: Place, episode: Episode, ending: Ending, agent: NodeAgent
    ) -> RolloutClosed:
        """Close and say so. Raises Superseded when the compare-and-set lost, TryEnded, FencedOut."""
        try:
            sealed = await agent.seal(place.rollout_id, place.try_, place.hop)
        except (AgentLost, AgentRefusal) as error:
            raise failure_of(error) from error
        failpoints.hit(seams.BEFORE_UPLOAD)
        trajectory = trajectory_of(place, episode, ending, sealed)
        blob = await self._upload(place, to_msgpack(trajectory))
        failpoints.hit(seams.UPLOADED)
        ended = rollout_end(trajectory, ending, blob)
        if await self._commit(ended) is CloseOutcome.LOST:
            raise Superseded("the rollout was closed or moved on")
        return RolloutClosed(
            rollout_id=ended.rollout_id,
            try_=ended.try_,
            hop=ended.hop,
            end=ended.end,
            oldest_version=ended.oldest_version,
            newest_version=ended.newest_version,
            tokens=ended.tokens,
            sampled_tokens=ended.sampled_tokens,
            turns=ended.turns,
        )

    async def _upload(self, place: Place, data: bytes) -> Blob:
        path = trajectory_path(self.job_id, place.rollout_id, place.try_, place.hop)
        pause_s = BACKOFF_S
        while True:
            try:
                return await self.blobs.create(path, data)
            except FileExistsError as error:
                # Another process of this very placement stored other tokens: ours prove nothing.
                raise TryEnded(End.ENGINE_LOST, "trajectory_exists") from error
            except (ObjectNotWritten, PayloadUnreadable) as error:
                pause_s = await self._wait("upload.failed", pause_s, error)

    async def _commit(self, ended: RolloutEnd) -> CloseOutcome:
        pause_s = BACKOFF_S
        while True:
            try:
                async with self.database.begin(self.fence) as connection:
                    return await close_rollout(connection, ended)
            except StoreUnavailable as error:
                pause_s = await self._wait("close.failed", pause_s, error)

    async def _wait(self, event: str, pause_s: float, error: Exception) -> float:
        get_logger().warning(event, cause=str(error), pause_s=pause_s)
        await self.clock.sleep(pause_s)
        return min(pause_s * 2, BACKOFF_MAX_S)


def trajectory_of(place: Place, episode: Episode, ending: Ending, sealed: Sealed) -> Trajectory:
    """The whole record of a try that ended naturally."""
    spans = episode.spans
    own = {
        "generate_s": sum(span.generate_s for span in spans),
        "tool_s": sum(span.tool_s for span in spans),
        "drift": float(episode.drift),
    }
    return Trajectory(
        rollout_id=place.rollout_id,
        group_id=place.group_id,
        task_id=TaskId(str(json.loads(place.task_json)["id"])),
        try_=place.try_,
        hop=place.hop,
        end=ending.end.value,
        segments=episode.segments(),
        turns=spans,
        messages=episode.messages,
        metrics=sealed.metrics | own,
        artefacts=sealed.artefacts,
        cause=ending.cause,
        rewrites=episode.rewrites,
    )


def rollout_end(trajectory: Trajectory, ending: Ending, blob: Blob) -> RolloutEnd:
    """What the row says of a trajectory."""
    oldest = [s.oldest_version for s in trajectory.segments if s.oldest_version is not None]
    newest = [s.newest_version for s in trajectory.segments if s.newest_version is not None]
    return RolloutEnd(
        rollout_id=trajectory.rollout_id,
        group_id=trajectory.group_id,
        try_=trajectory.try_,
        hop=trajectory.hop,
        end=ending.end,
        cause=ending.cause,
        trajectory_uri=blob.uri,
        trajectory_sha=blob.sha,
        turns=len(trajectory.turns),
        tokens=sum(len(segment.token_ids) for segment in trajectory.segments),
        sampled_tokens=sum(sum(segment.mask) for segment in trajectory.segments),
        oldest_version=min(oldest, default=None),
        newest_version=max(newest, default=None),
    )
