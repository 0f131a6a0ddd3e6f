"""A plan's run in the simulated world: the delays, sandboxes and flat groups that the plain world lacks.

The world gives a sandbox at once, a verdict at once and never the same reward twice. Here each of
these facts reaches the core when it would in the platform, and groups that taught nothing are told so.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from domain.events import Event, GroupGraded, RolloutClosed, SandboxReady
from domain.ids import GroupId, RolloutId, ordinal_of
from domain.plan import JobPlan, OnNoSignal, Pool, StrategyName
from scheduler.core.coordinator import Coordinator
from scheduler.core.strategies import Venus, rules_for
from simulation.plan import CannotModel, Course, Draw, Groups, PlannedGroup, PlanPool, PlanTooLarge
from simulation.workload.trajectory import Trajectory, Turn
from simulation.world import Setup, World

EVENTS_MAX: Final = 2_000_000
"""Facts of one replica: minutes of one core, beyond what a plan may cost."""

TICK_S: Final = 1.0
"""Of the core's clock; half of the platform's rate, and no wait of a plan hangs on it."""

GRADING_RESERVE: Final = 1
"""Sandboxes of a node that agents never get; the platform's number."""


class PlannedWork:
    """Work of a replica as the world asks for it, calls between hosts added to each gap."""

    def __init__(self, groups: Groups, turn_s: float) -> None:
        self._groups = groups
        self._turn_s = turn_s
        self._known: dict[int, PlannedGroup] = {}

    def planned(self, ordinal: int) -> PlannedGroup:
        """The group with this ordinal."""
        found = self._known.get(ordinal)
        if found is None:
            drawn = self._groups.group(ordinal)
            members = tuple(_with_calls(one, self._turn_s) for one in drawn.members)
            found = self._known[ordinal] = replace(drawn, members=members)
        return found

    def group(self, ordinal: int) -> tuple[Trajectory, ...]:
        """Members of a group."""
        return self.planned(ordinal).members

    def trajectory(self, ordinal: int, member: int) -> Trajectory:
        """One member."""
        return self.planned(ordinal).members[member]


class RehearsedWorld(World):
    """The simulated world with a plan's delays and pool; it also notes who held a sandbox when."""

    def __init__(self, setup: Setup, draw: Draw, pool: PlanPool) -> None:
        super().__init__(setup)
        self.core = Coordinator(
            Pool(setup.engines, 1, pool.sandboxes, GRADING_RESERVE), checking=False
        )
        self._draw = draw
        self._work = setup.workload
        self.began_s: float | None = None
        self.sandboxes_peak = 0
        self.sandbox_s = 0.0
        self._held: dict[RolloutId, float] = {}

    def feed(self, event: Event) -> None:
        """Hand a fact to the core when it would arrive."""
        if self.events > EVENTS_MAX:
            raise PlanTooLarge(f"a replica has more than {EVENTS_MAX} events")
        delays = self._draw.rates.delays
        match event:
            case SandboxReady(rollout_id=rollout_id):
                self._after(delays.sandbox_s, lambda: self._lend(rollout_id, event))
            case GroupGraded(group_id=group_id):
                is_flat = self._planned(group_id).is_flat
                told = replace(event, zero_variance=is_flat)
                self._after(delays.grade_s, lambda: self._tell(told))
            case RolloutClosed(rollout_id=rollout_id):
                self._give_back(rollout_id)
                self._tell(event)
            case _:
                self._tell(event)

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

    def _tell(self, event: Event) -> None:
        super().feed(event)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self.clock.after(seconds, act)

    def _planned(self, group_id: GroupId) -> PlannedGroup:
        assert isinstance(self._work, PlannedWork)
        return self._work.planned(ordinal_of(group_id))

    def _lend(self, rollout_id: RolloutId, event: Event) -> None:
        delay = self._draw.rates.delays.sandbox_s
        began = self.clock.now - delay
        self.began_s = began if self.began_s is None else min(self.began_s, began)
        self._held[rollout_id] = began
        self.sandboxes_peak = max(self.sandboxes_peak, len(self._held))
        self._tell(event)

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
        workload=PlannedWork(draw.groups, rates.delays.turn_s),
        trainer_tokens_s=1.0 / max(rates.trainer.token_s, 1e-12),
        update_s=rates.trainer.update_s,
        weight_sync_s=rates.delays.sync_s,
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


def _with_calls(one: Trajectory, turn_s: float) -> Trajectory:
    """Calls between hosts lengthen every gap; behind the last turn nobody waits for them."""
    *before, last = one.turns
    longer = (
        Turn(turn.new_tokens, turn.output_tokens, turn.tool, turn.tool_s + turn_s)
        for turn in before
    )
    return Trajectory((*longer, last))
