"""Each fault of the chaos environment, seen by a user: the documented end and verdict, never a zero.

One job meets all faults that leave its environment's process alive, each on a task of its own, beside
healthy tasks; each fault that ends the process strikes every task of another job, at the same time.
`docs/reference/chaos-environment.md` is the table that both are held to.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.integration.faults.jobs import (
    Platform,
    assert_no_trained_failure,
    assert_one_point_per_step,
    chaos_job,
    member,
    said,
)
from tests.support.requirements import requires
from venusrl.client import JobPaused
from venusrl.models.jobs import Job
from venusrl.models.rollouts import Group, RolloutDetail

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]

TRIES: Final = 2

FAILED_TRIES: Final = {
    "hang": "call_timeout",
    "raise": "raised",
    "exit": "raised",
    "bad_reply": "bad_reply",
    "missing_reply": "bad_reply",
    "bad_snapshot": "bad_state",
    "hang_reset": "call_timeout",
    "raise_reset": "raised",
    "empty_prompt": "empty_prompt",
}
"""Faults that end every try as `env_failed`, with their cause."""

OVERFLOWS: Final = ("huge_output", "context_overflow")
HARMLESS: Final = ("slow_reset", "raw_bytes", "tool_error", "tamper")

UNSCORABLE: Final = {
    "reward_nan": "not_finite",
    "reward_inf": "not_finite",
    "reward_none": "bad_type",
    "reward_bool": "bad_type",
    "reward_text": "bad_type",
    "reward_empty": "bad_type",
    "reward_huge": "out_of_range",
    "grader_crash": "grader_crashed",
    "grader_sigkill": "grader_crashed",
    "grader_hang": "timeout",
    "grader_spin": "timeout",
    "grader_raise": "raised",
}
"""Faults of the reward, with the reason of their verdict."""

FAULTS: Final = (*FAILED_TRIES, *OVERFLOWS, *HARMLESS, *UNSCORABLE)

KILLERS: Final = {
    "crash": "process_exited",
    "sigkill": "process_killed",
    "spin": "loop_blocked",
}
"""Faults that end the environment's process, with the cause of its death."""

SPIN_S: Final = 6.0
"""How long a spin holds its process: `blocked_s` of the package's manifest."""

WRONG, BAD_FORMAT = 0.0, -0.2
"""Rewards of the two scripted members: a wrong number, and what is no number."""

TOOL_REPLIES: Final = {
    "raw_bytes": "\ufffd\ufffd1",
    "tool_error": "error: ValueError: chaos: the tool failed",
    "tamper": "19",
    "slow_reset": "19",
}


def task_of(fault: str) -> str:
    """The task that a fault has for itself."""
    return f"train-{FAULTS.index(fault):04d}"


@dataclass(frozen=True, slots=True)
class Jobs:
    """All jobs, started together."""

    platform: Platform
    every_fault: Job
    killers: Mapping[str, Job]
    """By fault."""

    def struck(self, fault: str) -> tuple[Group, list[RolloutDetail]]:
        """The group of a fault's task and its rollouts, once the job is over."""
        self.platform.succeeded(self.every_fault)
        (group,) = self.platform.groups(self.every_fault, task_id=task_of(fault))
        return group, self.platform.rollouts(self.every_fault, task_id=task_of(fault))


@pytest.fixture(scope="module")
def jobs(platform: Platform) -> Iterator[Jobs]:
    """Two members a group; a batch as large as there are faults, so that all of them meet at once.

    Members call the tool and then give a wrong number, or none. Where tries fail, they call again.
    """
    call = said("c12+07;")
    script = {member(0): [call, said("a99;")], member(1): [call, said("a+;")]}
    for fault in FAILED_TRIES:
        ordinal = FAULTS.index(fault)
        script |= {member(0, ordinal): [call], member(1, ordinal): [call]}
    rollout = {
        "group_size": 2,
        "groups_per_batch": len(FAULTS),
        "on_failure": {"tries": TRIES},
    }
    by_task = {task_of(fault): {fault: 1.0} for fault in FAULTS}
    every_fault = chaos_job("every fault", {"by_task": by_task}, rollout=rollout)
    with ExitStack() as running:
        first = running.enter_context(platform.running(every_fault, script))
        killers = {
            fault: running.enter_context(platform.running(killing_job(fault))) for fault in KILLERS
        }
        yield Jobs(platform, first, killers)


def killing_job(fault: str) -> dict[str, Any]:
    """A job whose environment ends its process at the first turn of every rollout."""
    rollout = {
        "group_size": 2,
        "groups_per_batch": 1,
        "on_failure": {"tries": TRIES},
        "pause_job_if_failed_share": 0.5,
    }
    return chaos_job(fault, {"faults": {fault: 1.0}}, rollout=rollout)


@pytest.mark.parametrize(("fault", "cause"), FAILED_TRIES.items())
def test_a_fault_of_the_environment_fails_its_tries_and_is_no_reward(
    jobs: Jobs, fault: str, cause: str
) -> None:
    group, rollouts = jobs.struck(fault)
    for one in rollouts:
        assert (one.end, one.verdict, one.reward) == ("env_failed", "unscorable", None)
        assert cause in (one.cause or "")
        assert [(each.end, each.counts) for each in one.tries] == [("env_failed", True)] * TRIES
        assert all(cause in each.cause for each in one.tries)
        assert one.disposition.startswith("dropped")
    assert group.disposition == "dropped(unsalvageable)"


@pytest.mark.parametrize("fault", OVERFLOWS)
def test_a_message_that_overflows_the_context_ends_its_rollout_and_is_named(
    jobs: Jobs, fault: str
) -> None:
    _, rollouts = jobs.struck(fault)
    for one in rollouts:
        assert (one.end, one.current_try) == ("context_overflow", 1)
        assert re.search(r"message \d \((tool|user).* has (70000|5000) characters", one.cause or "")
        assert (one.verdict, one.reward) == ("scored", BAD_FORMAT)


@pytest.mark.parametrize("fault", HARMLESS)
def test_what_a_tool_does_wrong_is_told_to_the_model_and_ends_nothing(
    jobs: Jobs, fault: str
) -> None:
    group, rollouts = jobs.struck(fault)
    assert [one.end for one in rollouts] == ["done", "done"]
    assert [one.reward for one in rollouts] == [WRONG, BAD_FORMAT]
    assert {one.disposition for one in rollouts} == {group.disposition} == {"trained(1)"}
    for one in rollouts:
        messages = jobs.platform.client.rollouts.trajectory(one.id).messages
        (reply,) = [message for message in messages if message["role"] == "tool"]
        assert reply["content"] == TOOL_REPLIES[fault]
        assert reply["tool_call_id"] == messages[1]["tool_calls"][0]["id"]


def test_an_agent_that_rewrites_the_check_wins_nothing(jobs: Jobs) -> None:
    """F8, as far as grading runs without a sandbox: the artefact shows it, the verdict does not."""
    _, rollouts = jobs.struck("tamper")
    trajectory = jobs.platform.client.rollouts.trajectory(rollouts[0].id)
    assert trajectory.artefacts["check.py"] == "assert True\n"
    assert rollouts[0].reward == WRONG


@pytest.mark.parametrize(("fault", "reason"), UNSCORABLE.items())
def test_a_broken_reward_is_unscorable_with_its_reason(jobs: Jobs, fault: str, reason: str) -> None:
    """F9, F10: every degenerate value and every way in which a grader can end."""
    group, rollouts = jobs.struck(fault)
    for one in rollouts:
        assert (one.end, one.verdict, one.unscorable_reason) == ("done", "unscorable", reason)
        assert (one.reward, one.advantage) == (None, None)
        assert one.disposition == "dropped(unscorable)"
    assert (group.disposition, group.usable, group.mean_reward) == ("dropped(unscorable)", 0, None)


def test_healthy_tasks_beside_the_faults_are_trained_and_a_real_zero_stays_a_zero(
    jobs: Jobs,
) -> None:
    jobs.platform.succeeded(jobs.every_fault)
    groups = jobs.platform.groups(jobs.every_fault, disposition="trained(1)")
    assert len(groups) == len(FAULTS)
    rollouts = jobs.platform.rollouts(jobs.every_fault, step=1)
    assert sorted(one.reward or 0.0 for one in rollouts) == [BAD_FORMAT] * len(FAULTS) + [
        WRONG
    ] * len(FAULTS)
    assert_no_trained_failure(jobs.platform, jobs.every_fault)
    assert_one_point_per_step(jobs.platform, jobs.every_fault)


@pytest.mark.parametrize(("fault", "cause"), KILLERS.items())
def test_an_environment_that_ends_its_process_pauses_its_job_with_the_reason(
    jobs: Jobs, fault: str, cause: str
) -> None:
    """F20: a bounded number of starts, then a cause; F22: told through the client as an error."""
    job = jobs.killers[fault]
    assert jobs.platform.settled(job).state == "paused"
    with pytest.raises(JobPaused, match="failed_share"):
        jobs.platform.client.jobs.wait(job.id)
    rollouts = [one for one in jobs.platform.rollouts(job) if one.end is not None]
    assert {one.end for one in rollouts} == {"env_failed"}
    assert {one.verdict for one in rollouts} == {"unscorable"}
    for one in rollouts:
        failed = [each for each in one.tries if each.counts]
        assert len(failed) == TRIES
        assert all(cause in each.cause for each in failed)
        assert one.disposition.startswith("dropped")


def test_a_spinning_neighbour_delays_no_turn_of_another_job(jobs: Jobs) -> None:
    """F22: user code has a process of its own; no turn beside it lasted as long as one spin."""
    jobs.platform.settled(jobs.killers["spin"])
    for one in jobs.platform.client.rollouts.list(jobs.every_fault.id, disposition="trained(1)"):
        for turn in jobs.platform.client.rollouts.trajectory(one.id).turns:
            assert turn["tool_s"] < SPIN_S


def test_every_rollout_is_in_the_ledger_once(jobs: Jobs) -> None:
    for job in (jobs.every_fault, *jobs.killers.values()):
        jobs.platform.settled(job)
        ledger = jobs.platform.client.jobs.ledger(job.id)
        assert ledger.rollouts == sum(line.rollouts for line in ledger.lines)
        assert ledger.rollouts == len(list(jobs.platform.client.rollouts.list(job.id)))
        assert not [
            line
            for line in ledger.lines
            if line.disposition.startswith("trained") and line.verdict != "scored"
        ]
