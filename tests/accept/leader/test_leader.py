"""A leader that dies holds up nobody for long: rollouts go on at their hosts, decisions come back."""

import signal
from datetime import datetime
from typing import Final

import pytest

from infra.settings import Intervals
from tests.support.requirements import requires
from tests.support.specs import small_job
from tests.support.stack import Stack, StackPlan, running_stack
from tests.support.waiting import wait_until
from tests.support.whole_job import assert_whole

pytestmark = [pytest.mark.accept, requires("bwrap", "postgres", "torch")]

RESUMES_WITHIN_S: Final = 10.0

STEPS_WITHIN_S: Final = 120.0
"""Three hosts load torch on two cores."""

PATIENT: Final = {
    "VENUS_LEADER_TTL_S": str(Intervals().leader_ttl_s),
    "VENUS_LEADER_HEARTBEAT_S": str(Intervals().leader_heartbeat_s),
}
"""As everywhere but in tests: a successor may not owe its speed to hasty ones."""

STEPS = "select count(*) from train_step where job_id = %s"

HELD: Final = "rollout.generated=sleep:1.5,id=held"
"""A rollout that is sure to be in flight when the leader dies, and to go on before there is another."""

FIRST_DECISION = "select min(placed_at) from rollout_hop where placed_at > %s"

ENDED_MEANWHILE = """
select count(*) from rollout_hop where placed_at < %s and ended_at > %s and ended_at < %s and engine_s > 0
"""
"""By their hosts' clocks, which are this machine's."""


def now_of(stack: Stack) -> datetime:
    """The database's clock."""
    found: datetime = stack.query("select clock_timestamp()")[0][0]
    return found


@pytest.mark.parametrize("schedulers", [1, 2])
def test_rollouts_go_on_without_a_leader_and_decisions_resume(schedulers: int) -> None:
    with running_stack(StackPlan(schedulers=schedulers, environ=PATIENT)) as stack:
        job = stack.client.jobs.create(small_job(stop={"max_steps": 12}))
        wait_until(lambda: stack.query(STEPS, job.id)[0][0] >= 2, STEPS_WITHIN_S)
        leader = stack.leader()
        assert leader is not None
        stack.failpoints.arm(HELD)
        wait_until(lambda: stack.failpoints.fired("rollout.generated"), STEPS_WITHIN_S)
        leader.send(signal.SIGKILL)
        died = now_of(stack)
        stack.failpoints.disarm()
        wait_until(lambda: stack.query(FIRST_DECISION, died)[0][0], RESUMES_WITHIN_S * 3)
        resumed: datetime = stack.query(FIRST_DECISION, died)[0][0]
        assert (resumed - died).total_seconds() <= RESUMES_WITHIN_S
        stack.client.jobs.wait(job.id, STEPS_WITHIN_S)
        assert_whole(stack, job.id, 12)
        assert stack.query(ENDED_MEANWHILE, died, died, resumed)[0][0] >= 1
