"""A whole job whose engines run full: the leader moves rollouts in tool gaps, the job ends as any other."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.faults.jobs import job_spec, member, said
from tests.support import requires
from tests.support.stack import Stack, StackPlan, running_stack
from tests.support.whole_job import assert_whole

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    requires("postgres", "valkey", "bwrap"),
]

ENDS_WITHIN_S = 150.0

KV_TOKENS = 104
"""Less than the big context and three small ones take, room for five small ones on the other engine."""

LONG_TURNS = {"sampling": {"temperature": 1.0, "max_tokens_per_turn": 64}}
BIG = said("c" + "1+" * 30 + "1;")
"""Its only gap comes before the others have grown: one that fits nowhere ends the search for a while."""

SMALL = said("c1;", delay_s=1.0)
SCRIPT = {
    member(0, 0): [BIG, said("19", delay_s=5.0)],
    member(0): [*([SMALL] * 3), said("19")],
    member(1): [*([SMALL] * 3), said("19")],
    member(2): [*([SMALL] * 3), said("19")],
    member(3): [*([SMALL] * 3), said("+")],
}
"""Four of the eight go to each engine, in whatever order: that of the big one is full, the other not.
One answer of each group is worse: without that there is nothing to train on."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Engines that say how little they hold."""
    with tempfile.TemporaryDirectory(prefix="venus-scripts-") as scripts:
        script = {"by_rollout": SCRIPT, "by_turn": True, "kv_tokens": KV_TOKENS}
        Path(scripts, "script.json").write_text(json.dumps(script))
        environ = {
            "VENUS_ENGINE": "scripted",
            "VENUS_ENGINE_SCRIPT": str(Path(scripts, "script.json")),
        }
        with running_stack(StackPlan(environ=environ)) as one:
            yield one


def test_a_full_engine_hands_rollouts_over_and_the_job_ends_whole(stack: Stack) -> None:
    two = {"rollout_gpus": {"min": 2, "max": 2}}
    job = stack.client.jobs.create(job_spec("full", resources=two, rollout=LONG_TURNS))
    ended = stack.client.jobs.wait_for(job.id, ["succeeded", "failed", "cancelled"], ENDS_WITHIN_S)
    assert ended.state == "succeeded", ended
    moved = stack.query(
        "select rollout_id from rollout_hop join rollout on rollout.id = rollout_id"
        " where job_id = %s and rollout_hop.try = 1"
        " group by rollout_id having count(distinct rollout_hop.host_id) > 1",
        job.id,
    )
    assert moved, "no rollout was on two engines"
    tries = stack.query("select max(try) from rollout where job_id = %s", job.id)
    assert tries == [(1,)], "a move costs no try"
    assert_whole(stack, job.id)
