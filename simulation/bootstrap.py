"""Recorded jobs as inputs of a plan: groups drawn with replacement, costs fitted to each draw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from simulation.fitting import Row
from simulation.likeness import correlation, share_of_own
from simulation.plan import Course, Draw, PlannedGroup
from simulation.rates import Crowds, Rates, Waits
from simulation.recorded import (
    NotEnoughRecorded,
    RecordedGroup,
    RecordedJob,
    RecordedRollout,
    is_flat,
    sync_s_of,
)
from simulation.recorded_engine import engine_rows, fit_engine
from simulation.recorded_trainer import fit_trainer
from simulation.recorded_waits import crowds_of, grade_crowds_of, waits_of
from simulation.usage import length, peak, union
from simulation.workload.trajectory import Trajectory
from simulation.workload.workload import chance_of


@dataclass(frozen=True, slots=True)
class DrawnGroups:
    """Groups of one replica, by ordinal; the same ordinal is the same group."""

    groups: Sequence[RecordedGroup]
    waits: Mapping[tuple[int, int], Waits]
    grade_crowds: Mapping[int, float]
    alike: float
    """Of the rewards of one group (`simulation.likeness`)."""
    size: int
    seed: int

    def group(self, ordinal: int) -> PlannedGroup:
        """A recorded group. Where it has fewer members than asked for, others are drawn besides.

        Whether its rewards are all equal is judged of the members drawn, so that a larger group is
        flat less often.
        """
        chance = chance_of(self.seed, ordinal, "recorded group")
        source = self.groups[chance.randrange(len(self.groups))]
        members = self._members(source, chance)
        rewards = [group.rollouts[place].reward for group, place in members]
        return PlannedGroup(
            members=tuple(
                _member(source, group, group.rollouts[place]) for group, place in members
            ),
            waits=tuple(self.waits[group.ordinal, place] for group, place in members),
            grade_s=max(source.graded_s - source.closed_s, 0.0),
            is_flat=is_flat(rewards),
            grade_crowd=self.grade_crowds[source.ordinal],
        )

    def _members(self, source: RecordedGroup, chance: Random) -> list[tuple[RecordedGroup, int]]:
        """Whose rollout each member is, by group and place."""
        count = len(source.rollouts)
        if self.size <= count:
            return [(source, place) for place in chance.sample(range(count), self.size)]
        members = [(source, place) for place in range(count)]
        while len(members) < self.size:
            if chance.random() < share_of_own(len(members), self.alike):
                members.append(members[chance.randrange(len(members))])
            else:
                other = self.groups[chance.randrange(len(self.groups))]
                members.append((other, chance.randrange(len(other.rollouts))))
        return members


@dataclass(slots=True)
class RecordedInputs:
    """`Inputs` from a recorded job. Rows of the engine's fit are made once and drawn with the groups."""

    job: RecordedJob
    slots: int | None = None
    """Other engine slots than the recorded ones."""
    _rows: dict[int, list[Row]] = field(init=False, repr=False)
    _groups: list[RecordedGroup] = field(init=False, repr=False)
    _with_signal: list[RecordedGroup] = field(init=False, repr=False)
    _waits: dict[tuple[int, int], Waits] = field(init=False, repr=False)
    _grade_crowds: dict[int, float] = field(init=False, repr=False)
    _crowds: Crowds = field(init=False, repr=False)
    _alike: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises NotEnoughRecorded."""
        self.job.check()
        self._groups = [group for group in self.job.groups if _is_whole(group)]
        if not self._groups:
            raise NotEnoughRecorded("no group has the turns of all its rollouts")
        self._with_signal = [group for group in self._groups if not group.is_flat]
        self._rows = engine_rows(self._groups)
        self._waits = waits_of(self.job)
        self._grade_crowds = grade_crowds_of(self.job)
        self._crowds = crowds_of(self.job, self._waits, self._grade_crowds)
        self._alike = correlation(
            [[m.reward for m in g.rollouts if m.reward is not None] for g in self._groups]
        )

    def draw(self, chance: Random, group_size: int) -> Draw:
        """One bootstrap sample of groups and of steps."""
        groups = [self._groups[chance.randrange(len(self._groups))] for _ in self._groups]
        if self._with_signal and all(group.is_flat for group in groups):
            # The job made steps: a truth in which it never would is none of the possible ones.
            groups[0] = self._with_signal[chance.randrange(len(self._with_signal))]
        steps = [self.job.steps[chance.randrange(len(self.job.steps))] for _ in self.job.steps]
        rows = [row for group in groups for row in self._rows[group.ordinal]]
        fitted = fit_engine(rows, self.slots or self.job.slots, self.job.kv_tokens)
        trainer = fit_trainer(steps, streams=self.job.streams)
        rates = Rates(fitted.rates, trainer, sync_s_of(self.job), self._crowds)
        drawn = DrawnGroups(
            groups,
            self._waits,
            self._grade_crowds,
            self._alike,
            group_size,
            chance.getrandbits(32),
        )
        return Draw(rates, drawn)


def _member(group: RecordedGroup, origin: RecordedGroup, rollout: RecordedRollout) -> Trajectory:
    """A rollout as a member of a group, whose prompt all members share."""
    own = rollout.trajectory()
    if origin is group:
        return own
    first = replace(own.turns[0], new_tokens=group.prefix_tokens)
    return Trajectory((first, *own.turns[1:]))


def _is_whole(group: RecordedGroup) -> bool:
    return bool(group.rollouts) and all(one.turns for one in group.rollouts)


def course_of(job: RecordedJob) -> Course:
    """What the recorded job really did, in the measures of a simulated one."""
    rollouts = [(group, one) for group in job.groups for one in group.rollouts]
    held = [(group.opened_s, one.ended_s) for group, one in rollouts]
    began_s = min(group.opened_s for group in job.groups)
    return Course(
        began_s=began_s,
        commits_s=tuple(step.committed_s for step in job.steps),
        staleness=tuple(lag for step in job.steps for lag in step.staleness),
        engines=job.engines,
        generate_s=sum(one.generate_s for _, one in rollouts),
        busy_s=_busy_s(job),
        sandbox_s=length(held),
        sandboxes_peak=peak(held),
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
    return sum(union(host) for host in spans.values())
