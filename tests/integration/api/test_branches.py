"""Branches as the gateway takes them: what is asked is made whole, what cannot be is refused."""

from typing import Any

import pytest
from sqlalchemy import func

from domain.trajectory import Segment, Trajectory
from infra.codec import to_msgpack
from infra.names import BRANCH_ROLLOUT
from stores import tables as t
from tests.integration.api.filled import Filled, stored
from tests.integration.api.world import Tenant, World
from venusrl.client import NotFound, OperationFailed
from venusrl.models.branches import BranchResult
from venusrl.models.checkpoints import Operation

RESULT: dict[str, Any] = {
    "branch_id": "op_x",
    "rollout_id": "ro_x",
    "checkpoint_id": "ckpt_x",
    "policy_version": 5,
    "runtime": "process",
    "restored": "files",
    "tool_output": False,
    "borders": [
        {
            "turn": 2,
            "prefix_tokens": 7,
            "live": 1,
            "files": 2,
            "differing_files": [],
            "scored": 1,
            "passed": 1,
            "pass_rate": 1.0,
            "mean_reward": 1.0,
            "continuations": [
                {
                    "index": 0,
                    "end": "done",
                    "cause": None,
                    "verdict": "scored",
                    "reward": 1.0,
                    "passed": True,
                    "unscorable_reason": None,
                    "components": {"score": 1.0},
                    "turns": 4,
                    "tokens": 20,
                    "sampled_tokens": 9,
                    "files_sha256": "f" * 64,
                    "case": {"name": "n", "split": "train", "task": "t", "turns": [{}],
                             "expect": {"total": 1.0}},
                }
            ],
        }
    ],
    "not_played": [],
}  # fmt: skip
"""What a chore writes, less where trajectories lie."""


@pytest.fixture
def filled(tenant: Tenant) -> Filled:
    """A job with a rollout of four turns that has a trajectory."""
    made = Filled(tenant)
    stored(made.world, made.rollouts[0])
    made.world.change(t.rollout, made.rollouts[0], turns=4, closed_at=func.now())
    return made


def branch(tenant: Tenant, rollout: str, status: int = 202, **body: Any) -> dict[str, Any]:
    """What the gateway says."""
    with tenant.http() as http:
        answer = http.post(f"/v1/rollouts/{rollout}/branch", json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ends(world: World, state: str = "done", **values: Any) -> None:
    """End every branch as its chore would."""
    for row in world.rows(t.operation):
        if row.kind == BRANCH_ROLLOUT:
            world.change(t.operation, row.id, state=state, **values)


def test_the_newest_checkpoint_and_all_turns_are_what_nobody_named(
    tenant: Tenant, filled: Filled
) -> None:
    tenant.checkpoint(filled.job, b"old")
    newest = tenant.checkpoint(filled.job, b"new", step=6)
    operation = branch(tenant, filled.rollouts[0], n=4)
    assert (operation["kind"], operation["state"]) == (BRANCH_ROLLOUT, "pending")
    (row,) = [one for one in tenant.world.rows(t.operation) if one.kind == BRANCH_ROLLOUT]
    assert row.request == {
        "rollout_id": filled.rollouts[0],
        "checkpoint_id": newest,
        "turns": [0, 1, 2, 3],
        "n": 4,
        "tool_output": None,
        "temperature": None,
    }
    assert row.project_id == tenant.project_id


def test_a_repeated_request_is_one_branch(tenant: Tenant, filled: Filled) -> None:
    tenant.checkpoint(filled.job)
    path, key = f"/v1/rollouts/{filled.rollouts[0]}/branch", {"Idempotency-Key": "k1"}
    with tenant.http() as http:
        first = http.post(path, json={"turns": [3]}, headers=key)
        again = http.post(path, json={"turns": [3]}, headers=key)
        other = http.post(path, json={"turns": [2]}, headers=key)
    assert first.json()["id"] == again.json()["id"]
    assert other.json()["code"] == "idempotency_conflict"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"turns": [4]}, "no_such_turn"),
        ({"turns": [0], "tool_output": "x"}, "no_tool_output"),
        ({"turns": [], "n": 1}, "too_short"),
        ({"turns": [1], "n": 17}, "less_than_equal"),
    ],
)
def test_what_is_wrong_with_a_request_is_a_finding(
    tenant: Tenant, filled: Filled, body: dict[str, Any], code: str
) -> None:
    tenant.checkpoint(filled.job)
    refused = branch(tenant, filled.rollouts[0], 422, **body)
    assert [one["code"] for one in refused["errors"]] == [code]


def test_a_rollout_that_cannot_be_branched_says_why(tenant: Tenant, filled: Filled) -> None:
    assert branch(tenant, filled.rollouts[1], 409, turns=[0])["code"] == "rollout_open"
    filled.world.change(t.rollout, filled.rollouts[1], closed_at=func.now())
    assert branch(tenant, filled.rollouts[1], 409, turns=[0])["code"] == "no_trajectory"
    assert branch(tenant, filled.rollouts[0], 409, turns=[0])["code"] == "no_checkpoint"
    expired = tenant.checkpoint(filled.job, state="expired")
    refused = branch(tenant, filled.rollouts[0], 409, turns=[0], checkpoint=expired)
    assert refused["code"] == "checkpoint_not_ready"
    unknown = branch(tenant, filled.rollouts[0], 404, turns=[0], checkpoint="ckpt_none")
    assert unknown["code"] == "not_found"


def test_a_branch_of_another_tenants_checkpoint_is_refused(
    world: World, tenant: Tenant, filled: Filled
) -> None:
    stranger = world.tenant("stranger")
    theirs = stranger.checkpoint(stranger.ended())
    refused = branch(tenant, filled.rollouts[0], 404, turns=[1], checkpoint=theirs)
    assert refused["code"] == "not_found"
    assert branch(stranger, filled.rollouts[0], 404, turns=[1])["code"] == "not_found"


def test_branches_are_listed_with_results_and_their_trajectories_read(
    world: World, tenant: Tenant, filled: Filled
) -> None:
    tenant.checkpoint(filled.job)
    operation = branch(tenant, filled.rollouts[0], turns=[2], n=1)
    segment = Segment((1, 2), (0, 1), (0.0, -1.0), (-1, 5))
    record = Trajectory("ro_x", "grp_x", "t", 1, 0, "done", (segment,), (), ())  # type: ignore[arg-type]
    uri, sha = world.store("jobs/x/branches/a.msgpack", to_msgpack(record))
    made = {**RESULT, "branch_id": operation["id"]}
    one = made["borders"][0]["continuations"][0] | {"trajectory": {"uri": uri, "sha": sha}}
    made["borders"] = [{**made["borders"][0], "continuations": [one]}]
    ends(world, result=made)
    with tenant.sdk() as client:
        (found,) = client.rollouts.branches(filled.rollouts[0])
        assert (found.id, found.state, found.turns, found.n) == (operation["id"], "done", [2], 1)
        assert found.result == BranchResult.model_validate(made)
        shown = client.rollouts.branch_trajectory(filled.rollouts[0], found.id, 2, 0)
        assert shown.segments[0].versions == [-1, 5]
        with pytest.raises(NotFound):
            client.rollouts.branch_trajectory(filled.rollouts[0], found.id, 2, 1)
        with pytest.raises(NotFound):
            client.rollouts.branch_trajectory(filled.rollouts[1], found.id, 2, 0)
    stranger = world.tenant("stranger")
    with stranger.http() as http:
        path = f"/v1/rollouts/{filled.rollouts[0]}/branches/{operation['id']}/trajectory"
        assert http.get(path, params={"turn": 2, "index": 0}).status_code == 404
        assert http.get(f"/v1/rollouts/{filled.rollouts[0]}/branches").status_code == 404


def test_a_refused_replay_is_an_error_of_the_client(
    world: World, tenant: Tenant, filled: Filled
) -> None:
    tenant.checkpoint(filled.job)
    operation = branch(tenant, filled.rollouts[0], turns=[2])
    ends(world, "failed", error={"code": "replay_diverged", "detail": "turn 0: answered"})
    with tenant.sdk() as client, pytest.raises(OperationFailed) as caught:
        client.operations.wait(Operation.model_validate(operation), 5.0)
    assert caught.value.code == "replay_diverged"
