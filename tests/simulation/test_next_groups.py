"""What is said of the next group before a tick is what the tick does, under every strategy."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from domain.commands import OpenGroup
from domain.events import Event, Tick
from domain.ids import RolloutId
from domain.plan import EvaluationPlan, JobPlan, Pool, Scheduling, StrategyName
from domain.schedule import NextGroup
from domain.states import JobState, Purpose
from scheduler.core.views import view_schedule
from tests.simulation.driver import Workload, World
from tests.simulation.plans import POOL, plan

KNOBS: Final = {
    StrategyName.AIMD: (("in_flight_max", 8.0),),
    StrategyName.SLIME_BOUNDED: (("pool_per_engine", 1.0),),
    StrategyName.SLIME_SYNC: (("over_sampling", 1.5),),
}
"""Numbers that make a strategy hold back in a small world."""

HOLDING: Final = (StrategyName.SLIME_SYNC, StrategyName.SLIME_BOUNDED, StrategyName.ROLLFLASH,
                  StrategyName.AIMD)  # fmt: skip

SCARCE: Final = Pool(engines=2, trainers=1, sandboxes=6, grading_reserve=1)

SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"max_staleness": 0, "async_ratio": 4.0, "max_steps": 4},
    {"max_staleness": 3, "async_ratio": 3.0, "max_steps": 8, "engines_max": 2},
    {"max_staleness": 1, "max_steps": 5, "evaluation": EvaluationPlan(6, 2, 2)},
)


@dataclass(slots=True)
class Foretold(World):
    """A world that holds each tick against what its job's schedule said just before."""

    said: Counter[NextGroup] = field(default_factory=Counter)

    def deliver(self, event: Event) -> None:
        before = self._upcoming() if isinstance(event, Tick) else None
        seen = len(self.log)
        World.deliver(self, event)
        if before is None:
            return
        opened = [
            command
            for _, command in self.log[seen:]
            if isinstance(command, OpenGroup) and command.purpose is Purpose.TRAIN
        ]
        assert bool(opened) == (before is NextGroup.MAY_START), (self.now, before, opened)
        self.said[before] += 1

    def _upcoming(self) -> NextGroup | None:
        if self.leader is None:
            return None
        for job_id in list(self.leader.state.jobs):
            view = view_schedule(self.leader.state, job_id, self.now, 0)
            return None if view is None else view.next_group
        return None


def turn_s(rollout: RolloutId, turn: int) -> float:
    """Turns of seven lengths, so that groups end apart."""
    return 0.3 + 0.4 * (sum(map(ord, rollout)) % 7)


def whole(pool: Pool, job: JobPlan) -> Foretold:
    """The job from its submission to its end."""
    world = Foretold(pool, Workload(turn_s=turn_s))
    row = world.submit(job)
    world.run(lambda: row.state is JobState.SUCCEEDED, 2000.0)
    return world


@pytest.mark.parametrize("strategy", list(StrategyName))
def test_a_group_starts_exactly_where_it_was_said_to(strategy: StrategyName) -> None:
    said: Counter[NextGroup] = Counter()
    scheduling = Scheduling(strategy, knobs=KNOBS.get(strategy, ()))
    for changes in SETTINGS:
        for pool in (POOL, SCARCE):
            said += whole(pool, plan(**changes, scheduling=scheduling)).said
    assert said[NextGroup.LAST_STEP]
    assert said[NextGroup.STALENESS]
    assert strategy not in HOLDING or said[NextGroup.HELD_BY_STRATEGY]
