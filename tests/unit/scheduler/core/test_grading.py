"""From the last close to verdicts, retries of graders, no signal."""

import pytest

from domain.commands import AssignGroup, DropGroup, GradeGroup, NoteJob
from domain.events import GradeFailed, GroupGraded
from domain.ids import node_host_id
from domain.plan import AfterTries, OnNoSignal
from domain.states import DropReason, JobState, Purpose
from scheduler.core import grading
from scheduler.core.records import GroupPhase, GroupRecord
from scheduler.core.refusals import RefusalReason
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench, gid


def close_all(bench: Bench, ordinal: int = 0) -> GroupRecord:
    group = bench.group(ordinal)
    for rollout in group.rollouts:
        bench.ready(rollout)
    for rollout in group.rollouts:
        bench.close(rollout)
    return group


def test_the_last_close_asks_the_groups_own_node_for_verdicts() -> None:
    bench = Bench.running()
    close_all(bench)
    assert bench.found(GradeGroup) == [GradeGroup(gid(0), 1, node_host_id(0), 1, Purpose.TRAIN)]


def test_a_failed_grading_is_asked_again_under_the_next_epoch() -> None:
    bench = Bench.running()
    group = close_all(bench)
    commands = bench.feed(GradeFailed(group.group_id, 1, "died"))
    assert [g.grade_epoch for g in bench.found(GradeGroup, commands)] == [2]


def test_after_its_bound_a_failing_group_is_unscorable_and_never_zero() -> None:
    bench = Bench.running()
    group = close_all(bench)
    for epoch in range(1, grading.GRADE_FAILURES_MAX + 1):
        commands = bench.feed(GradeFailed(group.group_id, epoch, "died"))
    assert [d.reason for d in bench.found(DropGroup, commands)] == [DropReason.UNSCORABLE]


def test_verdicts_of_a_superseded_grader_are_refused() -> None:
    bench = Bench.running()
    group = close_all(bench)
    bench.feed(GradeFailed(group.group_id, 1, "died"))
    late = GroupGraded(group.group_id, 1, 2, False, 0, 0.5)
    assert bench.refusal(late).reason is RefusalReason.GRADE_EPOCH


def test_verdicts_that_the_leader_read_itself_are_folded_under_any_epoch() -> None:
    bench = Bench.running()
    group = close_all(bench)
    bench.feed(GradeFailed(group.group_id, 1, "died"))
    commands = bench.feed(GroupGraded(group.group_id, 1, 2, False, 0, 0.5, reread=True))
    assert len(bench.found(AssignGroup, commands)) == 1


def test_an_unanswered_grading_passes_its_deadline() -> None:
    bench = Bench.running()
    close_all(bench)
    commands = bench.tick(grading.GRADE_DEADLINE_S + 1)
    assert [g.grade_epoch for g in bench.found(GradeGroup, commands)] == [2]


def test_a_lost_node_fails_its_gradings_and_another_takes_them() -> None:
    bench = Bench.running()
    close_all(bench)
    bench.node(1)
    asked = bench.found(GradeGroup, bench.lost(node_host_id(0)))
    assert [(g.node, g.grade_epoch) for g in asked] == [(node_host_id(1), 2)]


def test_gradings_wait_for_a_node() -> None:
    bench = Bench.running()
    close_all(bench)
    assert bench.found(GradeGroup, bench.lost(node_host_id(0))) == []
    assert bench.group(0).phase is GroupPhase.CLOSED
    bench.node(0, epoch=2)
    assert [(g.grade_epoch, g.node_epoch) for g in bench.found(GradeGroup)] == [(2, 2)]


def test_a_node_that_dials_again_gets_its_grading_repeated_under_the_same_epoch() -> None:
    bench = Bench.running()
    close_all(bench)
    bench.node()
    assert [g.grade_epoch for g in bench.found(GradeGroup)] == [1]


def test_groups_without_variance_are_dropped_before_they_count() -> None:
    bench = Bench.running()
    commands = bench.play(bench.group(0), flat=True)
    assert [d.reason for d in bench.found(DropGroup, commands)] == [DropReason.ZERO_VARIANCE]
    assert bench.found(AssignGroup, commands) == []


def test_too_few_scored_members_make_a_group_unscorable() -> None:
    bench = Bench.running(plan(min_group_size=2))
    close_all(bench)
    commands = bench.grade(bench.group(0), usable=1)
    assert [d.reason for d in bench.found(DropGroup, commands)] == [DropReason.UNSCORABLE]


def test_under_drop_every_member_must_be_scored() -> None:
    bench = Bench.running(plan(min_group_size=1, after_tries=AfterTries.DROP))
    close_all(bench)
    commands = bench.grade(bench.group(0), usable=1)
    assert [d.reason for d in bench.found(DropGroup, commands)] == [DropReason.UNSCORABLE]


def play_flat(bench: Bench, count: int) -> None:
    for _ in range(count):
        group = next(g for g in bench.job().groups.values() if g.phase is GroupPhase.OPEN)
        bench.play(group, flat=True)


@pytest.mark.parametrize("action", list(OnNoSignal))
def test_a_whole_batch_without_variance_is_noted_with_its_groups(action: OnNoSignal) -> None:
    bench = Bench.running(plan(on_no_signal=action))
    play_flat(bench, 2)
    notes = bench.found(NoteJob, bench.commands)
    assert [(n.type, dict(n.body)["action"]) for n in notes] == [("job.no_signal", action.value)]
    assert dict(notes[0].body)["groups"] == f"{gid(0)} {gid(1)}"


def test_a_group_with_variance_ends_the_run_of_flat_ones() -> None:
    bench = Bench.running(plan(on_no_signal=OnNoSignal.PAUSE))
    bench.play(bench.group(0), flat=True)
    bench.play(bench.group(1))
    bench.play(bench.group(2), flat=True)
    assert bench.found(NoteJob, bench.commands) == []
    assert bench.job().state is JobState.RUNNING


def test_no_signal_pauses_the_job_with_its_reason() -> None:
    bench = Bench.running(plan(on_no_signal=OnNoSignal.PAUSE))
    play_flat(bench, 2)
    assert bench.job().state is JobState.PAUSING
    assert (bench.job().reason or "").startswith("no_signal")


def test_skip_goes_on_with_other_tasks() -> None:
    bench = Bench.running(plan(on_no_signal=OnNoSignal.SKIP, max_staleness=0))
    play_flat(bench, 2)
    assert [c.ordinal for c in bench.opened()] == [0, 1, 2, 3]


def test_wait_opens_one_probe_group_at_a_time_until_variance_returns() -> None:
    bench = Bench.running(plan(on_no_signal=OnNoSignal.WAIT, max_staleness=0))
    play_flat(bench, 2)
    while any(g.is_unfinished for g in bench.job().groups.values()):
        play_flat(bench, 1)
    before = len(bench.opened())
    bench.tick(1.0)
    assert len(bench.opened()) == before
    bench.tick(grading.NO_SIGNAL_PROBE_S)
    assert len(bench.opened()) == before + 1
    bench.play_open()
    assert len(bench.opened()) > before + 1
    assert not bench.job().signal.is_waiting
