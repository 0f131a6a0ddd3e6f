"""Rollouts that a real job made are continued after it has ended."""

import pytest

from tests.integration.jobs.test_jobs import submitted, succeeded
from tests.support import requires
from tests.support.stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]


def test_a_failed_rollout_goes_on_eight_times_from_its_third_turn(stack: Stack) -> None:
    job = submitted(stack, stop={"max_steps": 2})
    rows = succeeded(stack, job)
    failed = next(
        one
        for one in rows.rollouts
        if one["reward"] == 0.0 and one["turns"] == 3 and one["trajectory_uri"]
    )
    client, name = stack.client, str(failed["id"])
    recorded = client.rollouts.trajectory(name)
    result = client.rollouts.branch(name, [2], n=8)
    (border,) = result.borders
    assert (border.live, border.differing_files) == (8, [])
    assert border.files == 1
    assert len({one.files_sha256 for one in border.continuations}) == 1
    assert border.prefix_tokens == recorded.turns[2]["start"]

    start = border.prefix_tokens
    for index in range(8):
        made = client.rollouts.branch_trajectory(name, result.branch_id, 2, index)
        assert made.segments[0].token_ids[:start] == recorded.segments[0].token_ids[:start]
        ours, theirs = (one.artefacts["diary.jsonl"].splitlines() for one in (made, recorded))
        assert ours[:2] == theirs[:2]
    assert border.scored == 8
    (listed,) = client.rollouts.branches(name)
    assert (listed.id, listed.state) == (result.branch_id, "done")
    after = stack.query("select count(*) from rollout where job_id = %s", job.id)
    assert after[0][0] == len(rows.rollouts)
