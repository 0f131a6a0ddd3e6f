"""What an engine host writes of its own time: when it was ready, placements, how long syncs took."""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.ids import AttemptId, HostId, RolloutId
from stores.bill import SYNC_S
from stores.system import hops, intervals, training
from stores.system.hops import HopUse
from stores.unit_of_work import AsyncConnection


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is loaded: from now on the host can work."""

    host_id: HostId
    epoch: int


@dataclass(frozen=True, slots=True)
class Used:
    """A placement has ended, however it did."""

    rollout_id: RolloutId
    hop: int
    use: HopUse


@dataclass(frozen=True, slots=True)
class Synced:
    """The engine serves this version; `seconds` since the order: fetched, swapped and probed."""

    attempt_id: AttemptId
    version: int
    seconds: float


Measure = Ready | Used | Synced


async def write(connection: AsyncConnection, measures: Sequence[Measure]) -> None:
    """Write them; repeating it changes nothing."""
    for one in measures:
        match one:
            case Ready(host_id=host_id, epoch=epoch):
                await intervals.mark_ready(connection, host_id, epoch)
            case Used(rollout_id=rollout_id, hop=hop, use=use):
                await hops.measure(connection, rollout_id, hop, use)
            case Synced(attempt_id=attempt_id, version=version, seconds=seconds):
                at = (attempt_id, version)
                await training.note_metric(connection, at, SYNC_S, seconds)
