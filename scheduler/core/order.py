"""The order of a job's unfinished groups: class first, then the job's order, ties end in an id.

Classes: evaluation, promoted (its last valid step is the one being filled), critical (the first
`need` in the order, with hysteresis), normal. A rank is one integer that engines only compare; it is
stable while a rollout's class and estimate are, so that few ranks travel.
"""

from collections.abc import Callable
from typing import Final

from domain.ids import EVALUATION_ORDINAL_BASE
from domain.plan import Mechanism, Order
from kv.ranks import VALUE_SPAN, RankClass, compose
from scheduler.core.records import GroupPhase, GroupRecord, JobRecord
from scheduler.core.state import Pass

CRITICAL_MARGIN: Final = 0.2
"""A group outside the critical set enters only when its estimate is better than a member's by this
share; without it groups of nearly equal estimate would swap at every turn and lose their KV for it."""

AGEING_BATCHES: Final = 4
"""A group that is unfinished after this many batches becomes critical whatever its estimate."""


def expected_turns(job: JobRecord, group: GroupRecord) -> int:
    """Turns of a rollout of this group; finished siblings outweigh the plan's prior."""
    finished = [r.turn for r in group.rollouts if not r.is_open and r.turn > 0]
    return round(sum(finished) / len(finished)) if finished else job.plan.expected_turns


def eta_s(job: JobRecord, group: GroupRecord) -> float:
    """Estimated seconds to the end of the slowest unfinished member; 0 when only verdicts miss."""
    turns = [rollout.turn for rollout in group.rollouts if rollout.is_open]
    if not turns:
        return 0.0
    return job.history.remaining_s(min(turns), expected_turns(job, group))


def need(job: JobRecord) -> int:
    """Groups that the next batch still lacks: B less the complete ones not consumed by a step."""
    batch = job.plan.groups_per_batch
    filled = 0 if len(job.positions) == batch else len(job.positions)
    waiting = sum(1 for g in job.training_groups() if g.phase is GroupPhase.COMPLETE)
    return max(batch - filled - waiting, 0)


def order_key(job: JobRecord, bonus: bool = False) -> Callable[[GroupRecord], tuple[float, int]]:
    """Sort key of the job's order; with `bonus`, critical groups keep their place by a margin."""
    order = job.plan.order

    def key(group: GroupRecord) -> tuple[float, int]:
        if order is Order.OLDEST:
            return (0.0, group.ordinal)
        margin = CRITICAL_MARGIN if bonus and group.is_critical else 0.0
        if order is Order.NEAREST:
            return (eta_s(job, group) * (1.0 - margin), group.ordinal)
        return (-eta_s(job, group) * (1.0 + margin), group.ordinal)

    return key


def is_promoted(job: JobRecord, group: GroupRecord) -> bool:
    """Its last valid step is the one being filled: before everything else."""
    return group.is_training and job.last_valid_step(group) <= job.filling


def choose_critical(job: JobRecord) -> None:
    """Mark the first `need` unfinished groups in the job's order, and those that have waited too long."""
    unfinished = [g for g in job.training_groups() if g.is_unfinished]
    chosen = sorted(unfinished, key=job.rules.critical_key(job) or order_key(job, bonus=True))[
        : need(job)
    ]
    ids = {group.group_id for group in chosen}
    for group in unfinished:
        aged = job.committed - group.opened_at_step >= AGEING_BATCHES
        group.is_critical = aged or group.group_id in ids


def class_of(job: JobRecord, group: GroupRecord) -> int:
    """Rank class of a group; smaller runs first."""
    if not group.is_training:
        return RankClass.EVALUATION
    if not job.rules.uses_classes:
        return RankClass.NORMAL
    if is_promoted(job, group) and job.plan.scheduling.has(Mechanism.PROMOTION):
        return RankClass.PROMOTED
    return RankClass.CRITICAL if group.is_critical else RankClass.NORMAL


def group_value(job: JobRecord, group: GroupRecord) -> int:
    """Value of a group inside its class, as a whole number."""
    if not group.is_training:
        return group.ordinal - EVALUATION_ORDINAL_BASE
    return job.rules.value(job, group)


def value_in(job: JobRecord, group: GroupRecord, order: Order) -> int:
    """Place of a training group by one of the orders, as a whole number."""
    if order is Order.OLDEST:
        return group.ordinal
    deciseconds = min(int(eta_s(job, group) * 10.0), VALUE_SPAN - 1)
    return deciseconds if order is Order.NEAREST else VALUE_SPAN - 1 - deciseconds


def rank_group(run: Pass, job: JobRecord, group: GroupRecord) -> None:
    """Give the open members their ranks, longest remaining first; collect those that changed."""
    rank_class, value = class_of(job, group), group_value(job, group)
    # The history is the same for all members, so the longest remaining is the one with fewest turns.
    members = sorted((r for r in group.rollouts if r.is_open), key=lambda r: (r.turn, r.index))
    for place, rollout in enumerate(members):
        rank = compose(rank_class, value, place)
        if rank == rollout.rank:
            continue
        rollout.rank = rank
        if rollout.host is not None:
            run.ranks.setdefault(rollout.host, {})[rollout.rollout_id] = rank


def rank_job(run: Pass, job: JobRecord) -> None:
    """Choose the critical set anew and rank every open group."""
    if job.rules.uses_classes:
        choose_critical(job)
    for group in job.groups.values():
        if group.phase is GroupPhase.OPEN:
            rank_group(run, job, group)
    job.ranks_are_old = False
