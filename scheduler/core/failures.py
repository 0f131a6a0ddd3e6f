"""What follows a failure: the next try with back-off, then shrink or drop; a failing job pauses.

An infrastructure failure is never a reward. A rollout has `plan.tries` tries; the last failed one
closes it with that end, so work that kills what runs it ends after N starts. Over the tries of three
batches a failed share above the job's limit pauses the job and says why.
"""

from collections import Counter
from typing import Final

from domain.commands import CloseRollout, DropGroup, EndTry, NoteJob
from domain.ids import HostId
from domain.plan import AfterTries
from domain.states import DropReason, End
from scheduler.core import order, roster
from scheduler.core.holdings import let_go
from scheduler.core.records import GroupRecord, JobRecord, RolloutRecord, SandboxState
from scheduler.core.state import Pass

FAILED_SHARE_BATCHES: Final = 3
"""Window of the failed share; one batch would pause a job for a single bad task."""

FAILING_PROBE_S: Final = 5.0
"""Between training groups of a job of which a whole batch of tries failed in a row: each costs its
neighbours sandboxes, and what is broken usually stays broken."""

BACKOFF_MAX_S: Final = 60.0
"""A later try never waits longer; a recovered node should not find its rollouts asleep."""

ENGINE_LOSSES_PER_TRY: Final = 3
"""Engine hosts that may die under one try before the rollout is the suspect and the try ends."""


def fail_try(
    run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, failure: tuple[End, str]
) -> None:
    """End the current try for a reason of its own; start the next one or close the rollout."""
    end, cause = failure
    count_try(run, job, f"{end}: {cause}")
    lose_try(run, job, group, rollout, failure)


def lose_try(
    run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, failure: tuple[End, str]
) -> None:
    """The same without a mark in the failed share: the host under it died, one death for many tries."""
    end, cause = failure
    rollout.failed_tries += 1
    is_last = rollout.failed_tries >= job.plan.tries
    end_try(
        run,
        job,
        group,
        rollout,
        EndTry(
            rollout_id=rollout.rollout_id,
            try_=rollout.try_,
            hop=rollout.hop,
            end=end,
            cause=cause,
            next_try=None if is_last else rollout.try_ + 1,
        ),
    )
    if is_last:
        close_rollout(run, job, group, rollout, failure)
        return
    doublings = min(rollout.failed_tries - 1, 16)
    rollout.not_before = run.now + min(job.plan.retry_backoff_s * 2**doublings, BACKOFF_MAX_S)


def end_try(
    run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, command: EndTry
) -> None:
    """Let go of what the try holds; the next try, if any, wants a sandbox."""
    let_go(run.state, job, group, rollout)
    job.rules.on_left(run, job, group, rollout)
    run.grants_wanted = True
    run.emit(command)
    if command.next_try is None:
        return
    if group.is_training:
        # Positions were given away on the promise that the group is this young; the next try keeps it.
        group.policy_version = max(group.policy_version, group.oldest_possible_version())
    rollout.try_ = command.next_try
    rollout.turn = rollout.tokens = rollout.sampled_tokens = rollout.engine_losses = 0
    rollout.tool_s, rollout.oldest_version = 0.0, None
    rollout.not_before = rollout.progress_at = run.now
    job.wanting[rollout.rollout_id] = None
    roster.note_versions(job, group)
    order.note_restart(run, job, group)


def holding(group: GroupRecord) -> list[RolloutRecord]:
    """Open members whose try has a sandbox, or may have one."""
    return [one for one in group.open_rollouts() if one.sandbox is not SandboxState.WANTED]


def holding_on(group: GroupRecord, node: HostId) -> list[RolloutRecord]:
    """Of them, those whose sandbox is on this node."""
    return [one for one in group.open_rollouts() if one.node == node]


def want_again(run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord) -> None:
    """Nobody holds the current try: it asks for a sandbox anew, as the same try."""
    let_go(run.state, job, group, rollout)
    job.wanting[rollout.rollout_id] = None
    run.grants_wanted = True


def close_rollout(
    run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, failure: tuple[End, str]
) -> None:
    """Send the core's own close once; the answer says who won."""
    if rollout.is_closing or not rollout.is_open:
        return
    let_go(run.state, job, group, rollout)
    job.rules.on_left(run, job, group, rollout)
    rollout.is_closing = True
    run.grants_wanted = True
    run.emit(
        CloseRollout(
            rollout_id=rollout.rollout_id,
            try_=rollout.try_,
            hop=rollout.hop,
            end=failure[0],
            cause=failure[1],
        )
    )


def drop_group(
    run: Pass, job: JobRecord, group: GroupRecord, reason: DropReason, cause: str | None = None
) -> None:
    """Close what is open, write the disposition, forget the group."""
    for rollout in group.open_rollouts():
        close_rollout(run, job, group, rollout, (End.CANCELLED, f"group dropped: {reason.value}"))
    run.emit(DropGroup(group_id=group.group_id, reason=reason, cause=cause))
    if group.position is not None and job.positions.get(group.position) == group.group_id:
        roster.free_position(job, group.position)
    if group.is_training and reason is DropReason.CANCELLED:
        job.returned.append(group.ordinal)
    roster.remove(run.state, job, group)
    job.batch_is_old = True
    run.grants_wanted = True
    run.touch(job)


def check_members(run: Pass, job: JobRecord, group: GroupRecord) -> bool:
    """Drop a training group that lost too many members; whether it lives on."""
    lost = sum(1 for rollout in group.rollouts if rollout.is_lost)
    if not group.is_training or lost == 0 or group.size - lost >= least_usable(job, group):
        return True
    cause = f"{lost} of {group.size} rollouts exhausted their tries"
    drop_group(run, job, group, DropReason.UNSALVAGEABLE, cause)
    return False


def least_usable(job: JobRecord, group: GroupRecord) -> int:
    """Members that must count for the group to be trained."""
    if job.plan.after_tries is AfterTries.DROP:
        return group.size
    return max(min(job.plan.min_group_size, group.size), 1)


def count_try(run: Pass, job: JobRecord, failure: str | None) -> None:
    """Fold one try into the failed share; above the limit the job asks to pause."""
    window = FAILED_SHARE_BATCHES * job.plan.groups_per_batch * job.plan.group_size
    job.tries.append(failure)
    job.failed_tries += failure is not None
    if len(job.tries) > window:
        job.failed_tries -= job.tries.popleft() is not None
    job.failed_in_row = 0 if failure is None else job.failed_in_row + 1
    job.probe_after = run.now + FAILING_PROBE_S
    share = job.failed_tries / len(job.tries)
    if len(job.tries) < window or share <= job.plan.pause_if_failed_share or job.pause_wanted:
        return
    limit = job.plan.pause_if_failed_share
    causes = Counter(cause for cause in job.tries if cause is not None)
    cause, count = causes.most_common(1)[0]
    most = f"{count} of them {cause}"
    job.pause_wanted = (
        f"failed_share: {share:.2f} of the last {window} tries, limit {limit:.2f}; {most}"
    )
    run.emit(
        NoteJob(
            job_id=job.plan.job_id,
            type="job.failed_share",
            body=(
                ("share", f"{share:.4f}"),
                ("limit", f"{limit:.4f}"),
                ("tries", str(window)),
                ("cause", cause),
            ),
        )
    )
    run.touch(job)


def forget_tries(job: JobRecord) -> None:
    """The user lets the job run on: its failed share starts anew."""
    job.tries.clear()
    job.failed_tries = job.failed_in_row = 0
