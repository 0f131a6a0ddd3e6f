"""Positions of the step being filled: reservation, staleness, replacement."""

from domain.commands import AssignGroup, CloseStep, DropGroup, ReplaceMember
from domain.events import PayloadLost
from domain.states import DropReason
from scheduler.core.records import GroupPhase
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench, gid

DEEP = plan(max_staleness=1, async_ratio=9.0, max_steps=9)


def test_a_complete_group_is_assigned_at_once_with_its_staleness() -> None:
    bench = Bench.running(DEEP)
    assign = bench.found(AssignGroup, bench.play(bench.group(3)))
    assert [(a.step, a.position, a.group_id, a.staleness) for a in assign] == [(1, 0, gid(3), 0)]


def test_the_last_assignment_closes_the_step_once() -> None:
    bench = Bench.running(DEEP)
    bench.play(bench.group(0))
    assert bench.found(CloseStep, bench.play(bench.group(1))) == [CloseStep(DEEP.attempt_id, 1)]
    assert bench.found(CloseStep, bench.tick()) == []


def test_complete_groups_wait_while_the_step_is_full() -> None:
    bench = Bench.running(DEEP)
    for ordinal in (0, 1, 2):
        bench.play(bench.group(ordinal))
    assert bench.group(2).phase is GroupPhase.COMPLETE
    assign = bench.found(AssignGroup, bench.commit(1))
    assert [(a.step, a.group_id, a.staleness) for a in assign] == [(2, gid(2), 1)]


def test_a_position_is_reserved_for_a_promoted_group() -> None:
    bench = Bench.running(DEEP)
    for ordinal in (0, 1, 2):
        bench.play(bench.group(ordinal))
    bench.commit(1)
    bench.synced(DEEP, 0, 1)
    # Group 3 may enter step 2 at the latest; group 4 could enter step 3.
    assert bench.found(AssignGroup, bench.play(bench.group(4), version=1)) == []
    assigned = bench.found(AssignGroup, bench.play(bench.group(3)))
    assert [a.group_id for a in assigned] == [gid(3)]


def test_positions_of_later_steps_are_kept_for_groups_due_there() -> None:
    job = plan(groups_per_batch=1, max_staleness=2, async_ratio=9.0, max_steps=9)
    bench = Bench.running(job)
    bench.play(bench.group(0))
    bench.commit(1)
    bench.synced(job, 0, 1)
    # Groups 1 and 2 are due at step 3, so step 2 must take one of them, not group 3.
    assert bench.found(AssignGroup, bench.play(bench.group(3), version=1)) == []
    assigned = bench.found(AssignGroup, bench.play(bench.group(2)))
    assert [(a.step, a.group_id) for a in assigned] == [(2, gid(2))]


def test_a_group_past_its_last_valid_step_is_dropped_and_never_assigned() -> None:
    bench = Bench.running(DEEP)
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    bench.commit(1)
    bench.synced(DEEP, 0, 1)
    for ordinal in (2, 3):
        bench.play(bench.group(ordinal))
    bench.commit(2)
    bench.synced(DEEP, 0, 2)
    for rollout in bench.group(4).rollouts:
        bench.ready(rollout)
        bench.close(rollout, 1)
    commands = bench.grade(bench.group(4), version=0)
    assert bench.found(AssignGroup, commands) == []
    assert [d.reason for d in bench.found(DropGroup, commands)] == [DropReason.STALE]


def test_an_open_group_with_too_old_tokens_is_unsalvageable() -> None:
    bench = Bench.running(DEEP)
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    bench.commit(1)
    bench.synced(DEEP, 0, 1)
    for ordinal in (2, 3):
        bench.play(bench.group(ordinal))
    bench.commit(2)
    bench.ready(bench.rollout(4))
    commands = bench.turn(bench.rollout(4), 1, version=0)
    assert [d.reason for d in bench.found(DropGroup, commands)] == [DropReason.UNSALVAGEABLE]


def test_a_lost_payload_frees_its_position_for_another_group() -> None:
    bench = Bench.running(DEEP)
    for ordinal in (0, 1, 2):
        bench.play(bench.group(ordinal))
    commands = bench.feed(PayloadLost(DEEP.attempt_id, 1, gid(0), "unreadable"))
    assert bench.found(ReplaceMember, commands) == [ReplaceMember(DEEP.attempt_id, 1, 0, gid(0))]
    assert [d.reason for d in bench.found(DropGroup, commands)] == [DropReason.PAYLOAD_LOST]
    assert [(a.position, a.group_id) for a in bench.found(AssignGroup, commands)] == [(0, gid(2))]
    assert bench.found(CloseStep, commands) == [CloseStep(DEEP.attempt_id, 1)]
    assert 0 in bench.core.data_position(DEEP.attempt_id)[1]


def test_a_diverged_step_counts_and_consumes_its_groups() -> None:
    bench = Bench.running(DEEP)
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    bench.commit(1, diverged=True)
    assert bench.job().committed == 1
    assert gid(0) not in bench.job().groups
