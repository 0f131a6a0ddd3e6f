"""A plan's run in the simulated world: the delays, sandboxes and flat groups that the plain world lacks.

The world gives a sandbox at once, a verdict at once and never the same reward twice. Here each of
these facts reaches the core when it would in the platform, and groups that taught nothing are told so.
"""

from dataclasses import replace
from typing import Final

from domain.events import (
    Event,
    GroupGraded,
    RolloutClosed,
    SandboxReady,
    StepCommitted,
    Tick,
    TurnFinished,
    TurnSampled,
)
from domain.ids import GroupId, RolloutId, group_of, index_of, ordinal_of
from domain.plan import JobPlan, OnNoSignal, Pool, StrategyName
from domain.states import End
from scheduler.core.coordinator import Coordinator
from scheduler.core.strategies import rules_for
from scheduler.core.strategies.venus import Venus
from simulation.engine import ModelledEngine
from simulation.plan import (
    CannotModel,
    Course,
    Draw,
    GoesOn,
    Groups,
    OutOfTime,
    PlannedGroup,
    PlanPool,
    PlanTooLarge,
    PoolTooSmall,
)
from simulation.rates import Crowd, Waits
from simulation.runs import Episode, Setup
from simulation.stream import Stream
from simulation.usage import Span, length, peak, union
from simulation.workload.trajectory import Trajectory
from simulation.world import World

EVENTS_MAX: Final = 2_000_000
"""Facts of one replica: minutes of one core, beyond what a plan may cost."""

LOOK_EVERY: Final = 256
"""Facts between two looks at the time: milliseconds of one core."""

STILL_TICKS_MAX: Final = 100_000
"""Ticks in a row without progress: no reply takes longer than a day. What never fits is opened
and given up without end."""

PROGRESS: Final = (TurnSampled, TurnFinished, GroupGraded, StepCommitted)
"""Facts that bring a job nearer to its end."""

FLAT_RUN_MAX: Final = 1_000
"""Groups without a signal in a row. Of 99 flat ones in a hundred, so many would follow one another
once in 23,000 times; a job that has none at all would go on for ever."""

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
    """The simulated world with a plan's waits and pool; it also notes who held what when."""

    def __init__(self, setup: Setup, draw: Draw, pool: PlanPool, goes_on: GoesOn) -> None:
        super().__init__(setup)
        self.core = Coordinator(
            Pool(setup.engines, 1, pool.sandboxes, GRADING_RESERVE), checking=False
        )
        self._crowds = draw.rates.crowds
        self._work = PlannedWork(draw.groups)
        self._goes_on = goes_on
        self._fed = 0
        self.began_s: float | None = None
        self._held: dict[RolloutId, float] = {}
        self._lent: list[tuple[GroupId, Span]] = []
        self._generated: list[tuple[GroupId, str, Span]] = []
        self._graded: set[GroupId] = set()
        self._flat_run = 0
        self._ticks = 0

    def feed(self, event: Event) -> None:
        """Hand a fact to the core when it would arrive."""
        self._check_limits()
        if isinstance(event, PROGRESS):
            self._ticks = 0
        self._ticks += isinstance(event, Tick)
        match event:
            case SandboxReady(rollout_id=rollout_id):
                self._lend(rollout_id)
                # All members of its group come at this moment, and each waits beside all others.
                self.clock.after(0.0, lambda: self._wait_for_place(rollout_id, event))
            case GroupGraded(group_id=group_id):
                planned = self._planned(group_id)
                told = replace(event, zero_variance=planned.is_flat)
                self._later(self._graded_after_s(planned), told)
            case RolloutClosed(rollout_id=rollout_id, end=End.DONE):
                wait_s = self._waits(rollout_id).close_s
                self._later(wait_s * self._factor(self._crowds.turn, rollout_id), event)
            case _:
                self._tell(event)

    def turn_sampled(self, engine: ModelledEngine, stream: Stream) -> None:
        """Calls between hosts lengthen the gap that begins; behind the last turn nobody waits."""
        episode = self.episodes[stream.rollout_id]
        turns = episode.trajectory.turns
        span = (stream.admitted, self.clock.now)
        self._generated.append((group_of(stream.rollout_id), engine.name, span))
        if episode.turn + 1 < len(turns):
            calls_s = self._waits(stream.rollout_id).turn_s
            calls_s *= self._factor(self._crowds.turn, stream.rollout_id)
            turn = turns[episode.turn]
            tool_s = turn.tool_s * self._factor(self._crowds.tool, stream.rollout_id)
            longer = replace(turn, tool_s=tool_s + calls_s)
            before, after = turns[: episode.turn], turns[episode.turn + 1 :]
            episode.trajectory = Trajectory((*before, longer, *after))
        super().turn_sampled(engine, stream)

    def course(self) -> Course:
        """Run to the end, in the measures of a plan (`simulation.usage`)."""
        done = self.run()
        lent = [span for group, span in self._lent if group in self._graded]
        spans: dict[str, list[Span]] = {}
        for group, engine, span in self._generated:
            if group in self._graded:
                spans.setdefault(engine, []).append(span)
        return Course(
            began_s=self.began_s or 0.0,
            commits_s=tuple(done.steps),
            staleness=tuple(sorted(done.staleness.elements())),
            engines=max(len(done.engines), 1),
            generate_s=sum(length(one) for one in spans.values()),
            busy_s=sum(union(one) for one in spans.values()),
            sandbox_s=length(lent),
            sandboxes_peak=peak(lent),
        )

    def _check_limits(self) -> None:
        if self.events > EVENTS_MAX:
            raise PlanTooLarge(f"a replica has more than {EVENTS_MAX} events")
        if self._ticks > STILL_TICKS_MAX:
            raise CannotModel(
                f"the simulated job stands still: no turn, verdict or step in {STILL_TICKS_MAX} s;"
                f" an engine holds {self.setup.physics.kv_capacity_tokens} tokens of context"
            )
        self._fed += 1
        if self._fed % LOOK_EVERY == 0 and not self._goes_on():
            raise OutOfTime

    def _later(self, seconds: float, event: Event) -> None:
        if seconds > 0.0:
            self.clock.after(seconds, lambda: self._tell(event))
        else:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        """The fact has arrived."""
        match event:
            case RolloutClosed(rollout_id=rollout_id):
                self._give_back(rollout_id)
            case GroupGraded(group_id=group_id, zero_variance=is_flat):
                self._graded.add(group_id)
                self._note_signal(is_flat)
            case _:
                pass
        super().feed(event)

    def _note_signal(self, is_flat: bool) -> None:
        self._flat_run = self._flat_run + 1 if is_flat else 0
        if self._flat_run >= FLAT_RUN_MAX:
            raise CannotModel(
                f"no signal: {FLAT_RUN_MAX} simulated groups in a row had equal rewards and were"
                " dropped, so that no step would be made"
            )

    def _next_turn(self, episode: Episode) -> None:
        """One that is taken elsewhere between its last token and its end has nothing left to do there."""
        if episode.turn < len(episode.trajectory.turns):
            super()._next_turn(episode)
            return
        assert episode.stream is not None
        assert episode.engine is not None
        self._close(episode.engine, episode.stream, episode)

    def _planned(self, group_id: GroupId) -> PlannedGroup:
        return self._work.planned(ordinal_of(group_id))

    def _waits(self, rollout_id: RolloutId) -> Waits:
        return self._planned(group_of(rollout_id)).waits[index_of(rollout_id)]

    def _wait_for_place(self, rollout_id: RolloutId, event: Event) -> None:
        """Its first generation is asked for after the wait for a place."""
        waits = self._waits(rollout_id)
        factor = self._crowds.place.factor(waits.place_crowd, len(self._held))
        self._later(waits.place_s * factor, event)

    def _factor(self, crowd: Crowd, rollout_id: RolloutId) -> float:
        return crowd.factor(self._waits(rollout_id).crowd, len(self._held))

    def _graded_after_s(self, planned: PlannedGroup) -> float:
        """The verdicts, at the load of now."""
        crowd = self._crowds.grade
        return planned.grade_s * crowd.factor(planned.grade_crowd, len(self._held))

    def _lend(self, rollout_id: RolloutId) -> None:
        now = self.clock.now
        self.began_s = now if self.began_s is None else self.began_s
        self._held[rollout_id] = now

    def _give_back(self, rollout_id: RolloutId) -> None:
        since = self._held.pop(rollout_id, None)
        if since is not None:
            self._lent.append((group_of(rollout_id), (since, self.clock.now)))


def setup_of(plan: JobPlan, pool: PlanPool, draw: Draw) -> Setup:
    """A plan's run as the simulated world wants it."""
    rates = draw.rates
    return Setup(
        plan=replace(plan, evaluation=None, on_no_signal=OnNoSignal.SKIP, target_eval=None),
        physics=rates.engine.physics(),
        engines=pool.engines,
        workload=PlannedWork(draw.groups),
        trainer_tokens_s=1.0 / max(rates.trainer.token_s, 1e-12),
        update_s=rates.trainer.update_s,
        weight_sync_s=rates.sync_s,
        tick_s=TICK_S,
    )


def rehearse(plan: JobPlan, pool: PlanPool, draw: Draw, goes_on: GoesOn = lambda: True) -> Course:
    """Run the plan to its last step. Raises CannotModel, PoolTooSmall, PlanTooLarge, OutOfTime."""
    check(plan, pool)
    try:
        return RehearsedWorld(setup_of(plan, pool, draw), draw, pool, goes_on).course()
    except RuntimeError as error:
        raise CannotModel(f"the simulated job stands still: {error}") from error


def check(plan: JobPlan, pool: PlanPool) -> None:
    """Raise CannotModel for what would never make a step, PoolTooSmall where it would never begin."""
    strategy = plan.scheduling.strategy
    is_fallback = type(rules_for(plan.scheduling)) is Venus
    if is_fallback and strategy is not StrategyName.VENUS:
        raise CannotModel(f"the core has no strategy {strategy.value!r}")
    if plan.group_size < 2:
        raise CannotModel(
            "no signal: the advantage of a group of one is zero, every group is dropped and no step"
            " is ever made"
        )
    room = pool.sandboxes - GRADING_RESERVE
    if plan.group_size > room:
        raise PoolTooSmall(
            f"a group needs {plan.group_size} sandboxes; a pool of {pool.sandboxes} gives {room}"
        )
    if pool.engines < plan.engines_min:
        raise PoolTooSmall(
            f"the job needs {plan.engines_min} engine hosts; the pool has {pool.engines}"
        )
