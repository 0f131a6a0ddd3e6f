"""Tries, shrink and drop, the failed share, poison."""

from domain.commands import (
    CloseRollout,
    DropGroup,
    EndTry,
    ForkSandboxes,
    GradeGroup,
    NoteJob,
    PlaceRollout,
)
from domain.ids import node_host_id
from domain.plan import AfterTries
from domain.states import DropReason, End, JobState
from scheduler.core import failures
from tests.simulation.plans import plan, pool
from tests.unit.scheduler.core.bench import Bench, engine_id, rid


def exhaust(bench: Bench, ordinal: int = 0, index: int = 0) -> list[object]:
    rollout = bench.rollout(ordinal, index)
    last: list[object] = []
    for _ in range(bench.job().plan.tries):
        bench.tick(100.0)
        bench.ready(rollout)
        last = list(bench.fail(rollout))
    return last


def test_a_failed_try_starts_the_next_one_after_its_back_off() -> None:
    bench = Bench.running(plan(retry_backoff_s=1.5))
    bench.ready(bench.rollout(0))
    commands = bench.fail(bench.rollout(0), End.SANDBOX_LOST)
    ended = bench.found(EndTry, commands)
    assert [(e.try_, e.end, e.next_try, e.counts) for e in ended] == [
        (1, End.SANDBOX_LOST, 2, True)
    ]
    assert bench.found(ForkSandboxes, bench.tick(1.0)) == []
    forks = bench.found(ForkSandboxes, bench.tick(1.0))
    assert [fork.members for fork in forks] == [((rid(0), 2),)]


def test_back_off_doubles_up_to_its_bound() -> None:
    bench = Bench.running(plan(retry_backoff_s=40.0, tries=9))
    waits = []
    for _ in range(3):
        bench.ready(bench.rollout(0))
        bench.fail(bench.rollout(0))
        waits.append(bench.rollout(0).not_before - bench.now)
        bench.tick(100.0)
    assert waits == [40.0, failures.BACKOFF_MAX_S, failures.BACKOFF_MAX_S]


def test_after_its_tries_a_rollout_is_closed_with_the_failure_as_its_end() -> None:
    bench = Bench.running()
    exhaust(bench)
    assert [e.next_try for e in bench.found(EndTry)] == [None]
    closes = bench.found(CloseRollout)
    assert [(c.rollout_id, c.end) for c in closes] == [(rid(0), End.ENV_FAILED)]


def test_a_shrunk_group_is_graded_with_the_members_that_are_left() -> None:
    bench = Bench.running(plan(min_group_size=1))
    exhaust(bench)
    bench.ready(bench.rollout(0, 1))
    bench.close(bench.rollout(0, 1))
    commands = bench.close(bench.rollout(0, 0), None, End.ENV_FAILED)
    assert len(bench.found(GradeGroup, commands)) == 1
    bench.grade(bench.group(0), usable=1)
    assert bench.group(0).position == 0


def test_a_group_below_its_least_size_is_dropped_with_its_open_members() -> None:
    bench = Bench.running(plan(min_group_size=2))
    exhaust(bench)
    bench.ready(bench.rollout(0, 1))
    commands = bench.close(bench.rollout(0, 0), None, End.ENV_FAILED)
    assert [c.rollout_id for c in bench.found(CloseRollout, commands)] == [rid(0, 1)]
    assert [d.reason for d in bench.found(DropGroup, commands)] == [DropReason.UNSALVAGEABLE]


def test_under_drop_one_lost_member_drops_the_group() -> None:
    bench = Bench.running(plan(after_tries=AfterTries.DROP, min_group_size=1))
    exhaust(bench)
    commands = bench.close(bench.rollout(0, 0), None, End.ENV_FAILED)
    assert [d.reason for d in bench.found(DropGroup, commands)] == [DropReason.UNSALVAGEABLE]


def test_a_lost_node_ends_all_its_open_tries() -> None:
    bench = Bench.running(plan(max_staleness=0))
    bench.ready(bench.rollout(0))
    commands = bench.lost(node_host_id(0))
    ends = bench.found(EndTry, commands)
    assert len(ends) == 4
    assert {(e.end, e.cause) for e in ends} == {(End.SANDBOX_LOST, "node_agent_lost")}
    bench.node(epoch=2)
    forks = bench.found(ForkSandboxes, bench.tick())
    assert [len(fork.members) for fork in forks] == [2, 2]


def test_a_rollout_that_outlives_too_many_engines_ends_its_try() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    for epoch in range(1, 1 + failures.ENGINE_LOSSES_PER_TRY):
        commands = bench.lost(engine_id(), epoch)
        bench.engine(plan(), 0, epoch + 1)
        bench.synced(plan(), 0, 0, epoch + 1)
    assert [e.end for e in bench.found(EndTry, commands)] == [End.ENGINE_LOST]
    assert bench.rollout(0).try_ == 2


def test_a_failed_share_over_three_batches_pauses_the_job_and_says_why() -> None:
    job = plan(pause_if_failed_share=0.25, tries=99, groups_per_batch=1, group_size=2)
    bench = Bench.running(job, pool=pool(sandboxes=9))
    for attempt in range(5):
        bench.ready(bench.rollout(0))
        assert not bench.found(NoteJob, bench.fail(bench.rollout(0))), attempt
        bench.tick(100.0)
    bench.ready(bench.rollout(0))
    commands = bench.fail(bench.rollout(0))
    assert [note.type for note in bench.found(NoteJob, commands)] == ["job.failed_share"]
    assert bench.job().state is JobState.PAUSING
    reason = bench.job().reason or ""
    assert reason.startswith("failed_share: 1.00")
    assert "; 6 of them env_failed: test" in reason


def test_a_paused_try_counts_neither_against_the_limit_nor_as_failed() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    rollout, share = bench.rollout(0), len(bench.job().tries)
    failures_before = rollout.failed_tries
    bench.job().pause_wanted = "test"
    bench.tick(0.0)
    commands = bench.tick(10.0)
    ends = bench.found(EndTry, commands)
    assert {(e.end, e.cause, e.counts) for e in ends} == {(End.CANCELLED, "paused", False)}
    assert (rollout.failed_tries, len(bench.job().tries)) == (failures_before, share)


def test_a_retry_comes_before_a_new_group() -> None:
    bench = Bench.running(plan(max_steps=9), pool=pool(sandboxes=3, grading_reserve=1))
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
    bench.fail(bench.rollout(0, 0))
    bench.close(bench.rollout(0, 1))
    bench.tick(1.0)
    for rollout in bench.group(1).rollouts:
        bench.ready(rollout)
    forks = bench.found(ForkSandboxes, bench.close(bench.rollout(1, 0)))
    assert [fork.members for fork in forks] == [((rid(0, 0), 2),)]
    assert bench.found(PlaceRollout, bench.ready(bench.rollout(0, 0))) != []


def test_while_a_whole_batch_fails_in_a_row_one_group_at_a_time_is_tried() -> None:
    job = plan(tries=1, max_staleness=3, async_ratio=4.0, max_steps=9)
    bench = Bench.running(job, pool=pool(sandboxes=99))
    for ordinal in (0, 1):
        lose(bench, ordinal)
    opened = len(bench.opened())
    for ordinal in range(2, opened):
        lose(bench, ordinal)
    assert len(bench.opened()) == opened
    bench.tick(failures.FAILING_PROBE_S + 1)
    bench.tick(100.0)
    assert len(bench.opened()) == opened + 1
    bench.play(bench.group(opened))
    assert len(bench.opened()) > opened + 2


def lose(bench: Bench, ordinal: int) -> None:
    """All members of a group fail their only try."""
    for rollout in list(bench.group(ordinal).rollouts):
        bench.ready(rollout)
        bench.fail(rollout)
        bench.close(rollout, None, End.ENV_FAILED)
