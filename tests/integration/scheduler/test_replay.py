"""What a leader decided on a running platform is reproduced from its event log, also over its death."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from domain.event_log import LogRecord
from domain.events import GroupGraded, RolloutClosed, SandboxReady, StateRestored, StepCommitted
from domain.ids import GroupId, group_of
from simulation.replay import __main__ as command
from simulation.replay.compare import logs_of, replay
from tests.support import requires
from tests.support.event_logs import files_of, segments_of
from tests.support.specs import small_job
from tests.support.stack import StackPlan, start_stack
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    requires("postgres", "valkey", "bwrap"),
]

ENDS_WITHIN_S = 150.0


@pytest.fixture(scope="module")
def store() -> Iterator[Path]:
    """The event logs of a platform whose leader was killed in the middle of a job."""
    stack = start_stack(StackPlan(schedulers=2))
    try:
        logs = stack.home / "objects" / "event-log"
        spec = small_job(resources={"rollout_gpus": {"min": 1, "max": 1}}, stop={"max_steps": 12})
        job = stack.client.jobs.create(spec)
        wait_until(lambda: files_of(logs), ENDS_WITHIN_S, "no segment came")
        query = "select count(*) from train_step where job_id = %s"
        wait_until(lambda: stack.query(query, job.id)[0][0] > 0, ENDS_WITHIN_S)
        is_open = "select count(*) from rollout_group where job_id = %s and closed_at is null"
        wait_until(lambda: stack.query(is_open, job.id)[0][0] > 0, ENDS_WITHIN_S)
        leader = stack.leader()
        assert leader is not None
        os.kill(leader.pid, signal.SIGKILL)
        stack.client.jobs.wait(job.id, ENDS_WITHIN_S)
        stack.stop()
        yield logs
    finally:
        stack.abandon()
        shutil.rmtree(stack.home, ignore_errors=True)


def test_both_terms_are_replayed_identically(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(store)]) == 0
    said = capsys.readouterr().out
    assert said.count("identical: ") == 2
    assert "other code" not in said


def test_each_group_is_recorded_with_its_task_which_a_new_leader_restores(store: Path) -> None:
    entries = [entry for segment in segments_of(store) for entry in segment.entries]
    told: dict[GroupId, int | None] = {}
    restored: dict[GroupId, int | None] = {}
    for event in (entry.event for entry in entries if isinstance(entry, LogRecord)):
        if isinstance(event, SandboxReady):
            told[group_of(event.rollout_id)] = event.task
        elif isinstance(event, StateRestored):
            restored.update((one.group_id, one.task) for job in event.jobs for one in job.groups)
    assert told
    assert restored
    assert None not in told.values()
    assert all(told.get(group, task) == task for group, task in restored.items())


def test_the_second_term_opens_with_the_restored_job_and_sees_it_end(store: Path) -> None:
    log = logs_of(segments_of(store))[-1]
    entries = [entry for entry in log.entries() if isinstance(entry, LogRecord)]
    opening = entries[0].event
    assert isinstance(opening, StateRestored)
    assert len(opening.jobs) == 1
    kinds = {type(entry.event) for entry in entries}
    assert {RolloutClosed, GroupGraded, StepCommitted} <= kinds
    assert replay(log).ended is None
