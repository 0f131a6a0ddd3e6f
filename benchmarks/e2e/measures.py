"""Figures of one run, from what the platform recorded of it. Pure.

A step's seconds are those from the first group's opening to the last commit, over the steps: every
strategy trains the same groups, so one that begins many at once gains nothing by finishing them late.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from domain.engine import PAGE_TOKENS
from simulation.recorded import RecordedGroup, RecordedJob, RecordedRollout
from simulation.usage import peak


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A rollout that was trained, and how long it was."""

    task: str
    index: int
    turns: int
    tokens: int
    sampled: int


def step_s(job: RecordedJob) -> float:
    """Seconds of a step, the first included."""
    return (job.steps[-1].committed_s - began_s(job)) / len(job.steps)


def later_step_s(job: RecordedJob) -> float:
    """Seconds of a step after the first; what was begun before it is then for free."""
    commits = [step.committed_s for step in job.steps]
    return (commits[-1] - commits[0]) / max(len(commits) - 1, 1)


def began_s(job: RecordedJob) -> float:
    """The first group opened."""
    return min(group.opened_s for group in job.groups)


def pages(tokens: float) -> float:
    """Pages of a context; fractions stand for the mean of many."""
    return tokens / PAGE_TOKENS


def mean_group_pages(groups: Sequence[RecordedGroup]) -> float:
    """Pages that a group's contexts take, at their means over the turns; its shared prompt once."""
    return mean(_group_pages(group) for group in groups)


def _group_pages(group: RecordedGroup) -> float:
    shared = group.prefix_tokens
    private = [mean_context(one) - shared for one in group.rollouts if one.turns]
    return pages(shared + sum(private))


def mean_context(rollout: RecordedRollout) -> float:
    """Of the contexts at the ends of its answers."""
    return mean(turn.prompt_tokens + turn.output_tokens for turn in rollout.turns)


def pressure(
    groups: Sequence[RecordedGroup], groups_open_max: int, kv_pages: int, engines: int
) -> float:
    """Contexts in flight, were all groups in flight that a allows, over the pages that engines report."""
    return groups_open_max * mean_group_pages(groups) / (kv_pages * engines)


def demand(job: RecordedJob, kv_pages: int) -> float:
    """Contexts that this run really had in flight, averaged over its time, over the device's pages.

    From placement to end; where a strategy holds rollouts back, or hands them back late, that shows here.
    """
    area = sum(
        pages(mean_context(one)) * max(one.ended_s - one.placed_s, 0.0)
        for group in job.groups
        for one in group.rollouts
        if one.turns
    )
    span = job.steps[-1].committed_s - began_s(job)
    return area / (span * kv_pages * max(job.engines, 1))


def live_max(job: RecordedJob) -> int:
    """The most rollouts that had a place at the same time."""
    return peak([(one.placed_s, one.ended_s) for group in job.groups for one in group.rollouts])


def generating_share(job: RecordedJob) -> float:
    """Slots that generate, of all slots, over the run."""
    span = job.steps[-1].committed_s - began_s(job)
    used = sum(one.generate_s for group in job.groups for one in group.rollouts)
    return used / (span * job.slots * max(job.engines, 1))


def waiting_share(waits: Sequence[tuple[float, float]], count: int, job: RecordedJob) -> float:
    """Slot time that `count` rollouts spend in such waits (begin, end), of all slot time.

    Where not all waits are known, those of the others are as long on average.
    """
    if not waits:
        return 0.0
    span = job.steps[-1].committed_s - began_s(job)
    waited = sum(max(end - begin, 0.0) for begin, end in waits) * count / len(waits)
    return waited / (span * job.slots * max(job.engines, 1))


def same_share(mine: Sequence[Member], theirs: Sequence[Member]) -> float:
    """Share of trained rollouts that are the same in both, by task, place and lengths."""
    whole = max(len(mine), len(theirs))
    return len(set(mine) & set(theirs)) / whole if whole else 0.0
