"""What an engine host writes of its own time: when it was ready, and the use of each placement."""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.ids import HostId, RolloutId
from stores.system import hops, intervals
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


Measure = Ready | Used


async def write(connection: AsyncConnection, measures: Sequence[Measure]) -> None:
    """Write them; repeating it changes nothing."""
    for one in measures:
        match one:
            case Ready(host_id=host_id, epoch=epoch):
                await intervals.mark_ready(connection, host_id, epoch)
            case Used(rollout_id=rollout_id, hop=hop, use=use):
                await hops.measure(connection, rollout_id, hop, use)
