"""A plan's run in the simulated world: the delays, sandboxes and flat groups that the plain world lacks.

The world gives a sandbox at once, a verdict at once and never the same reward twice. Here each of
these facts reaches the core when it would in the platform, and groups that taught nothing are told so.
"""

from dataclasses import replace
from typing import Final

from domain.events import Event, GroupGraded, RolloutClosed, SandboxReady
from domain.ids import GroupId, RolloutId, group_of, index_of, ordinal_of
from domain.plan import JobPlan, OnNoSignal, Pool, StrategyName
from scheduler.core.coordinator import Coordinator
from scheduler.core.strategies import rules_for
from scheduler.core.strategies.venus import Venus
from simulation.engine import ModelledEngine
from simulation.plan import CannotModel, Course, Draw, Groups, PlannedGroup, PlanPool, PlanTooLarge
from simulation.rates import Crowd, Waits
from simulation.runs import Setup
from simulation.stream import Stream
from simulation.workload.trajectory import Trajectory
from simulation.world import World

EVENTS_MAX: Final = 2_000_000
"""Facts of one replica: minutes of one core, beyond what a plan may cost."""

TICK_S: Final = 1.0
"""Of the core's clock; half of the platform's rate, and no wait of a plan hangs on it."""

GRADING_RESERVE: Final = 1
"""Sandboxes of a node that agents never get; the platform's number."""


class PlannedWork:
    """Work of a replica as the world asks for it; each group is drawn once."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._known: dict[int, PlannedGroup] = {}

    def planned(self, ordinal: int) -> PlannedGroup:
        """The group with this ordinal."""
        found = self._known.get(ordinal)
        if found is None:
            found = self._known[ordinal] = self._groups.group(ordinal)
        return found

    def group(self, ordinal: int) -> tuple[Trajectory, ...]:
        """Members of a group."""
        return self.planned(ordinal).members

    def trajectory(self, ordinal: int, member: int) -> Trajectory:
        """One member."""
        return self.planned(ordinal).members[member]


class RehearsedWorld(World):
    """The simulated world with a plan's waits and pool; it also notes who held a sandbox when."""

    def __init__(self, setup: Setup, draw: Draw, pool: PlanPool) -> None:
        super().__init__(setup)
        self.core = Coordinator(
            Pool(setup.engines, 1, pool.sandboxes, GRADING_RESERVE), checking=False
        )
        self._crowds = draw.rates.crowds
        self._work = PlannedWork(draw.groups)
        self.began_s: float | None = None
        self.sandboxes_peak = 0
        self.sandbox_s = 0.0
        self._held: dict[RolloutId, float] = {}

    def feed(self, event: Event) -> None:
        """Hand a fact to the core when it would arrive."""
        if self.events > EVENTS_MAX:
            raise PlanTooLarge(f"a replica has more than {EVENTS_MAX} events")
        match event:
            case SandboxReady(rollout_id=rollout_id):
                self._lend(rollout_id)
                wait_s = self._waits(rollout_id).place_s
                self._later(wait_s * self._factor(self._crowds.place, rollout_id), event)
            case GroupGraded(group_id=group_id):
                planned = self._planned(group_id)
                told = replace(event, zero_variance=planned.is_flat)
                self._later(self._graded_after_s(planned), told)
            case RolloutClosed(rollout_id=rollout_id):
                self._give_back(rollout_id)
                super().feed(event)
            case _:
                super().feed(event)

    def turn_sampled(self, engine: ModelledEngine, stream: Stream) -> None:
        """Calls between hosts lengthen the gap that begins; behind the last turn nobody waits."""
        episode = self.episodes[stream.rollout_id]
        turns = episode.trajectory.turns
        if episode.turn + 1 < len(turns):
            calls_s = self._waits(stream.rollout_id).turn_s
            calls_s *= self._factor(self._crowds.turn, stream.rollout_id)
            turn = turns[episode.turn]
            longer = replace(turn, tool_s=turn.tool_s + calls_s)
            before, after = turns[: episode.turn], turns[episode.turn + 1 :]
            episode.trajectory = Trajectory((*before, longer, *after))
        super().turn_sampled(engine, stream)

    def course(self) -> Course:
        """Run to the end, in the measures of a plan."""
        done = self.run()
        engines = list(done.engines)
        return Course(
            began_s=self.began_s or 0.0,
            commits_s=tuple(done.steps),
            staleness=tuple(sorted(done.staleness.elements())),
            engines=max(len(engines), 1),
            generate_s=sum(engine.counts.decoding_s for engine in engines),
            busy_s=sum(engine.counts.busy_s for engine in engines),
            sandbox_s=self.sandbox_s,
            sandboxes_peak=self.sandboxes_peak,
        )

    def _later(self, seconds: float, event: Event) -> None:
        feed = super().feed
        self.clock.after(seconds, lambda: feed(event))

    def _planned(self, group_id: GroupId) -> PlannedGroup:
        return self._work.planned(ordinal_of(group_id))

    def _waits(self, rollout_id: RolloutId) -> Waits:
        return self._planned(group_of(rollout_id)).waits[index_of(rollout_id)]

    def _factor(self, crowd: Crowd, rollout_id: RolloutId) -> float:
        return crowd.factor(self._waits(rollout_id).crowd, len(self._held))

    def _graded_after_s(self, planned: PlannedGroup) -> float:
        """Its slowest member's end, then the verdicts, at the load of now."""
        now = len(self._held)
        seen = sum(one.crowd for one in planned.waits) / len(planned.waits)
        close_s = max(one.close_s for one in planned.waits) * self._crowds.turn.factor(seen, now)
        return close_s + planned.grade_s * self._crowds.grade.factor(seen, now)

    def _lend(self, rollout_id: RolloutId) -> None:
        now = self.clock.now
        self.began_s = now if self.began_s is None else self.began_s
        self._held[rollout_id] = now
        self.sandboxes_peak = max(self.sandboxes_peak, len(self._held))

    def _give_back(self, rollout_id: RolloutId) -> None:
        since = self._held.pop(rollout_id, None)
        if since is not None:
            self.sandbox_s += self.clock.now - since


def rehearse(plan: JobPlan, pool: PlanPool, draw: Draw) -> Course:
    """Run the plan to its last step. Raises CannotModel, PlanTooLarge."""
    check(plan)
    rates = draw.rates
    setup = Setup(
        plan=replace(plan, evaluation=None, on_no_signal=OnNoSignal.SKIP, target_eval=None),
        physics=rates.engine.physics(),
        engines=pool.engines,
        workload=PlannedWork(draw.groups),
        trainer_tokens_s=1.0 / max(rates.trainer.token_s, 1e-12),
        update_s=rates.trainer.update_s,
        weight_sync_s=rates.sync_s,
        tick_s=TICK_S,
    )
    try:
        return RehearsedWorld(setup, draw, pool).course()
    except RuntimeError as error:
        raise CannotModel(f"the simulated job stands still: {error}") from error


def check(plan: JobPlan) -> None:
    """Raise CannotModel for a strategy that the core does not have."""
    strategy = plan.scheduling.strategy
    is_fallback = type(rules_for(plan.scheduling)) is Venus
    if is_fallback and strategy is not StrategyName.VENUS:
        raise CannotModel(f"the core has no strategy {strategy.value!r}")
