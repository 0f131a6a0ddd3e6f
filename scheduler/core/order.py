"""The order of a job's unfinished groups: class first, then the job's order, ties end in an id.

Classes: evaluation, promoted (its last valid step is the one being filled), critical (the first
`need` in the order, with hysteresis), normal. A rank is one integer that engines only compare; it is
stable while a rollout's class and estimate are, so that few ranks travel: estimates are told apart in
steps (`grain_of`) and refreshed when a member of the group ends a turn, a try or itself.

    Roster.critical  ascending keys of the first `need`, with their margin
    Roster.normal    ascending keys of the rest; `settle_critical` moves groups over the border
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import islice
from typing import Final

from domain.ids import EVALUATION_ORDINAL_BASE
from domain.plan import Mechanism, Order
from kv.ranks import RankClass, compose
from scheduler.core.history import Known
from scheduler.core.records import Entry, GroupPhase, GroupRecord, JobRecord, RolloutRecord
from scheduler.core.state import Pass

CRITICAL_MARGIN: Final = 0.2
"""A group outside the critical set enters only when its estimate is better than a member's by this
share; without it groups of nearly equal estimate would swap at every turn and lose their KV for it."""

AGEING_BATCHES: Final = 4
"""A group that is unfinished after this many batches becomes critical whatever its estimate."""

GRAIN: Final = 1.1
"""Ratio between estimates that are told apart: closer than any estimate is true, so that a turn seldom
sends new ranks to a whole group."""

GRAIN_LEAST_S: Final = 0.1
"""Estimates below it are alike."""

GRAINS_MAX: Final = 999
"""Of any estimate that a float can hold; with `ORDINALS_MAX` it stays below `kv.ranks.VALUE_SPAN`."""

ORDINALS_MAX: Final = 10**9
"""Above every training ordinal, so that groups of one grain are ordered by their ordinal."""

GROUPS_RANKED_MAX: Final = 256
"""Groups of a job that one step ranks; the next one goes on. Some milliseconds for groups of 8."""

CRITICAL_MOVES_MAX: Final = 256
"""Groups that one step moves over the border of the critical set."""


def _grain_of_turn(turn: int) -> int:
    shift = max(turn.bit_length() - 3, 0)
    return (shift << 2) + (turn >> shift)


_TURN_GRAINS: Final = tuple(_grain_of_turn(turn) for turn in range(1024))
"""Looked up for nearly every turn."""


def eta_s(job: JobRecord, group: GroupRecord) -> float:
    """Estimated seconds to the end of the slowest unfinished member; 0 when only verdicts miss.

    A learned estimate speaks for its rollout. Of the others the one with the fewest turns is the
    slowest: finished siblings and earlier groups of the task say how many turns to expect, before any
    the job's history. With the predictor switched off only the plan's prior speaks.
    """
    is_predicting = job.plan.scheduling.has(Mechanism.PREDICTOR)
    least, ended, count, learned_s = -1, 0, 0, 0.0
    for rollout in group.rollouts:
        if rollout.end is not None:
            ended += rollout.turn
            count += rollout.turn > 0
        elif is_predicting and rollout.remaining is not None:
            learned_s = max(learned_s, job.history.seconds_of(rollout.remaining))
        elif least < 0 or rollout.turn < least:
            least = rollout.turn
    if least < 0:
        return learned_s
    if not is_predicting:
        return job.history.prior_s(least, job.plan.expected_turns)
    known = Known(group.task, ended, count)
    return max(learned_s, job.history.remaining_s(least, job.plan.expected_turns, known))


def need(job: JobRecord) -> int:
    """Groups that the next batch still lacks: B less the complete ones not consumed by a step."""
    batch = job.plan.groups_per_batch
    filled = 0 if len(job.positions) == batch else len(job.positions)
    return max(batch - filled - len(job.roster.waiting), 0)


def order_key(job: JobRecord) -> Callable[[GroupRecord], tuple[float, int]]:
    """Sort key of the job's order by what is estimated now."""
    order = job.plan.order

    def key(group: GroupRecord) -> tuple[float, int]:
        if order is Order.OLDEST:
            return (0.0, group.ordinal)
        sign = 1.0 if order is Order.NEAREST else -1.0
        return (sign * eta_s(job, group), group.ordinal)

    return key


def grain_of(eta: float) -> int:
    """The step of an estimate in seconds; larger for longer ones."""
    if eta <= GRAIN_LEAST_S:
        return 0
    return min(1 + int(math.log(eta / GRAIN_LEAST_S) / math.log(GRAIN)), GRAINS_MAX)


def is_promoted(job: JobRecord, group: GroupRecord) -> bool:
    """Its last valid step is the one being filled: before everything else."""
    return group.is_training and group.last_valid <= job.filling


def is_kept(job: JobRecord) -> bool:
    """Whether the critical set follows each event; else the strategy's own key makes it anew."""
    return job.rules.uses_classes and job.rules.critical_key(job) is None


def enlist(job: JobRecord, group: GroupRecord) -> None:
    """An unfinished training group takes part in the order from now on."""
    _refresh_grain(job, group)
    if is_kept(job):
        _insert(job, group)


def delist(job: JobRecord, group: GroupRecord) -> None:
    """It takes part no more."""
    _remove(job, group)
    group.is_critical = group.is_chosen = False


def choose_critical(job: JobRecord) -> None:
    """Make the whole critical set anew from the records, with the estimates of now."""
    key = job.rules.critical_key(job)
    if key is not None:
        _choose_by(job, key)
        return
    roster = job.roster
    roster.critical.clear()
    roster.normal.clear()
    roster.young.clear()
    for group in job.training_groups():
        group.entry = None
        if not group.is_unfinished:
            continue
        _refresh_grain(job, group)
        roster.young.setdefault(group.opened_at_step, {})[group.group_id] = group
        group.entry = key_of(job, group)
        (roster.critical if group.is_chosen else roster.normal).append(group.entry)
    roster.critical.sort()
    roster.normal.sort()
    age(job)
    while not settle_critical(job):
        pass


def _choose_by(job: JobRecord, key: Callable[[GroupRecord], tuple[float, int]]) -> None:
    unfinished = [group for group in job.training_groups() if group.is_unfinished]
    chosen = {group.group_id for group in sorted(unfinished, key=key)[: need(job)]}
    for group in unfinished:
        aged = job.committed - group.opened_at_step >= AGEING_BATCHES
        is_critical = aged or group.group_id in chosen
        if is_critical != group.is_critical:
            group.is_critical = is_critical
            job.roster.unranked[group.group_id] = None


def age(job: JobRecord) -> None:
    """Groups that have been unfinished for too many batches become critical."""
    young = job.roster.young
    for step in [step for step in young if job.committed - step >= AGEING_BATCHES]:
        for group in young.pop(step).values():
            _remove(job, group)
            group.is_aged = group.is_critical = True
            _insert(job, group)
            job.roster.unranked[group.group_id] = None


def settle_critical(job: JobRecord) -> bool:
    """Move groups over the border until the first `need` are critical; False when a bound cut it."""
    critical, normal, wanted = job.roster.critical, job.roster.normal, need(job)
    for _ in range(CRITICAL_MOVES_MAX):
        if len(critical) < wanted and normal:
            _cross(job, normal[0], is_chosen=True)
        elif len(critical) > wanted:
            _cross(job, critical[-1], is_chosen=False)
        elif critical and normal and normal[0] < critical[-1]:
            worst = critical[-1]
            _cross(job, normal[0], is_chosen=True)
            _cross(job, worst, is_chosen=False)
        else:
            return True
    return False


def _cross(job: JobRecord, entry: Entry, is_chosen: bool) -> None:
    group = job.groups[entry[2]]
    _remove(job, group)
    group.is_chosen = is_chosen
    group.is_critical = is_chosen or group.is_aged
    _insert(job, group)
    job.roster.unranked[group.group_id] = None


def _insert(job: JobRecord, group: GroupRecord) -> None:
    group.entry = key_of(job, group)
    insort(job.roster.critical if group.is_chosen else job.roster.normal, group.entry)


def _remove(job: JobRecord, group: GroupRecord) -> None:
    if group.entry is None:
        return
    entries = job.roster.critical if group.is_chosen else job.roster.normal
    at = bisect_left(entries, group.entry)
    assert entries[at] == group.entry, group.group_id
    del entries[at]
    group.entry = None


def key_of(job: JobRecord, group: GroupRecord) -> Entry:
    """Place in the order; critical groups keep theirs by a margin."""
    if job.plan.order is Order.OLDEST:
        return (0.0, group.ordinal, group.group_id)
    margin, eta = CRITICAL_MARGIN if group.is_critical else 0.0, GRAIN**group.grain
    estimate = eta * (1.0 - margin) if job.plan.order is Order.NEAREST else -eta * (1.0 + margin)
    return (estimate, group.ordinal, group.group_id)


def _refresh_grain(job: JobRecord, group: GroupRecord) -> bool:
    """Estimate the group anew; whether it changed by as much as orders tell apart."""
    if job.plan.order is Order.OLDEST:
        return False
    grain = grain_of(eta_s(job, group))
    if grain == group.grain:
        return False
    group.grain = grain
    return True


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
    grain = group.grain if order is job.plan.order else grain_of(eta_s(job, group))
    steps = grain if order is Order.NEAREST else GRAINS_MAX - grain
    return steps * ORDINALS_MAX + group.ordinal


def note_progress(run: Pass, job: JobRecord, group: GroupRecord) -> None:
    """A member ended a turn, a try or itself: what is estimated of its group may have changed."""
    if not group.is_training or group.phase is not GroupPhase.OPEN:
        return
    if _refresh_grain(job, group) and group.entry is not None:
        _remove(job, group)
        _insert(job, group)
        _settle_border(run, job)
    if job.rules.value(job, group) != group.value:
        job.roster.unranked[group.group_id] = None
        run.unranked[job.plan.job_id] = None


def note_task(run: Pass, job: JobRecord, group: GroupRecord, task: int | None) -> None:
    """The first sandbox of a group says which task it works on: earlier groups of it tell its length."""
    if task is not None and group.task is None:
        group.task = task
        note_progress(run, job, group)


def note_restart(run: Pass, job: JobRecord, group: GroupRecord) -> None:
    """A member went back or stands elsewhere than was known: all are ranked anew."""
    note_progress(run, job, group)
    job.roster.unranked[group.group_id] = None
    run.unranked[job.plan.job_id] = None


def note_turn(
    run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, former: int
) -> None:
    """A member went on from `former` turns: its group's estimate and its place inside it."""
    note_progress(run, job, group)
    low, high = _turn_grain(former), _turn_grain(rollout.turn)
    if low == high:
        return
    before, after = (low, rollout.index), (high, rollout.index)
    for sibling in group.rollouts:
        if sibling.end is not None or sibling is rollout:
            continue
        if before < (_turn_grain(sibling.turn), sibling.index) < after:
            rank_group(run, job, group)
            return


def _settle_border(run: Pass, job: JobRecord) -> None:
    critical, normal = job.roster.critical, job.roster.normal
    if critical and normal and normal[0] < critical[-1]:
        run.unranked[job.plan.job_id] = None


def _turn_grain(turn: int) -> int:
    """Turns in the steps that order members: exact up to 7, then four to each doubling."""
    return _TURN_GRAINS[turn] if turn < len(_TURN_GRAINS) else _grain_of_turn(turn)


def rank_group(run: Pass, job: JobRecord, group: GroupRecord) -> None:
    """Give the open members their ranks, longest remaining first; collect those that changed."""
    group.rank_class, group.value = class_of(job, group), group_value(job, group)
    # The history is the same for all members, so the longest remaining is the one with fewest turns.
    members = [(_turn_grain(r.turn), r.index) for r in group.rollouts if r.end is None]
    members.sort()
    first = compose(group.rank_class, group.value, 0)
    for place, (_, index) in enumerate(members):
        rollout, rank = group.rollouts[index], first + place
        if rank == rollout.rank:
            continue
        rollout.rank = rank
        if rollout.host is not None:
            run.ranks.setdefault(rollout.host, {})[rollout.rollout_id] = rank


def rank_job(run: Pass, job: JobRecord) -> None:
    """Bring the critical set up to date, then rank what changed."""
    roster = job.roster
    if job.ranks_are_old:
        job.ranks_are_old = False
        roster.unranked.update(dict.fromkeys(job.groups))
        if is_kept(job):
            choose_critical(job)
    if is_kept(job):
        if not settle_critical(job):
            run.leave(job)
    elif job.rules.uses_classes:
        choose_critical(job)
    unranked = roster.unranked
    for group_id in list(islice(unranked, GROUPS_RANKED_MAX)):
        del unranked[group_id]
        group = job.groups.get(group_id)
        if group is not None and group.phase is GroupPhase.OPEN:
            rank_group(run, job, group)
    if unranked:
        run.leave(job)
