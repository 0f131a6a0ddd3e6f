"""Recorded jobs as inputs of a plan: groups drawn with replacement, costs fitted to each draw."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from simulation.fitting import Row
from simulation.plan import Course, Draw, PlannedGroup
from simulation.rates import Rates
from simulation.recorded import (
    RecordedGroup,
    RecordedJob,
    RecordedRollout,
    delays_of,
    engine_rows,
    fit_engine,
    fit_trainer,
)
from simulation.workload.workload import chance_of


@dataclass(frozen=True, slots=True)
class DrawnGroups:
    """Groups of one replica, by ordinal; the same ordinal is the same group."""

    groups: Sequence[RecordedGroup]
    size: int
    seed: int

    def group(self, ordinal: int) -> PlannedGroup:
        """A recorded group. Where it has fewer members than asked for, some occur again.

        Whether its rewards are all equal is judged of the members drawn, so that a larger group is
        flat less often.
        """
        chance = chance_of(self.seed, ordinal, "recorded group")
        source = self.groups[chance.randrange(len(self.groups))].rollouts
        members = _members(source, self.size, chance)
        rewards = [one.reward for one in members if one.reward is not None]
        is_flat = bool(rewards) and min(rewards) == max(rewards)
        return PlannedGroup(tuple(one.trajectory() for one in members), is_flat)


def _members(
    source: Sequence[RecordedRollout], size: int, chance: Random
) -> Sequence[RecordedRollout]:
    if size <= len(source):
        return chance.sample(source, size)
    return [*source, *(source[chance.randrange(len(source))] for _ in range(size - len(source)))]


@dataclass(slots=True)
class RecordedInputs:
    """`Inputs` from a recorded job. Rows of the engine's fit are made once and drawn with the groups."""

    job: RecordedJob
    slots: int | None = None
    """Other engine slots than the recorded ones."""
    _rows: dict[int, list[Row]] = field(init=False, repr=False)
    _groups: list[RecordedGroup] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises NotEnoughRecorded."""
        self.job.check()
        self._groups = [group for group in self.job.groups if _is_whole(group)]
        self._rows = engine_rows(self._groups)

    def draw(self, chance: Random, group_size: int) -> Draw:
        """One bootstrap sample of groups and of steps."""
        groups = [self._groups[chance.randrange(len(self._groups))] for _ in self._groups]
        steps = [self.job.steps[chance.randrange(len(self.job.steps))] for _ in self.job.steps]
        rows = [row for group in groups for row in self._rows[group.ordinal]]
        fitted = fit_engine(rows, self.slots or self.job.slots, self.job.kv_tokens)
        rates = Rates(fitted.rates, fit_trainer(steps), delays_of(self.job))
        return Draw(rates, DrawnGroups(groups, group_size, chance.getrandbits(32)))


def _is_whole(group: RecordedGroup) -> bool:
    return bool(group.rollouts) and all(one.turns for one in group.rollouts)


def course_of(job: RecordedJob) -> Course:
    """What the recorded job really did, in the measures of a simulated one."""
    rollouts = [(group, one) for group in job.groups for one in group.rollouts]
    began_s = min(group.opened_s for group in job.groups)
    return Course(
        began_s=began_s,
        commits_s=tuple(step.committed_s for step in job.steps),
        staleness=tuple(lag for step in job.steps for lag in step.staleness),
        engines=job.engines,
        generate_s=sum(one.generate_s for _, one in rollouts),
        busy_s=_busy_s(job),
        sandbox_s=sum(one.ended_s - group.opened_s for group, one in rollouts),
        sandboxes_peak=_peak([(group.opened_s, one.ended_s) for group, one in rollouts]),
    )


def _busy_s(job: RecordedJob) -> float:
    """Engine-seconds with a generation: the union of each host's, as far as they can be placed."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for group in job.groups:
        for one in group.rollouts:
            now = one.placed_s
            for turn in one.turns:
                start = now + one.overhead_s
                now = start + turn.generate_s
                spans.setdefault(one.host, []).append((start, now))
                now += turn.tool_s
    return sum(_union(sorted(host)) for host in spans.values())


def _union(spans: Sequence[tuple[float, float]]) -> float:
    covered, until = 0.0, float("-inf")
    for start, end in spans:
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _peak(spans: Sequence[tuple[float, float]]) -> int:
    moments = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    held = peak = 0
    for _, change in moments:
        held += change
        peak = max(peak, held)
    return peak
