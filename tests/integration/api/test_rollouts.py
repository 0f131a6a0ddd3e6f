"""Groups, rollouts, trajectories, ledger and metrics, as other processes wrote them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from tests.integration.api.filled import Filled, stored
from tests.integration.api.world import Tenant, World
from venusrl.client import NotFound


@pytest.fixture
def filled(tenant: Tenant) -> Filled:
    """A job with rows."""
    return Filled(tenant)


FILTERS: tuple[tuple[Mapping[str, Any], tuple[int, ...]], ...] = (
    ({}, (0, 1, 2, 3)),
    ({"purpose": "train"}, (0, 1, 2)),
    ({"step": 1}, (0, 1, 2)),
    ({"step": 2}, ()),
    ({"end": "timeout"}, (2,)),
    ({"verdict": "unscorable"}, (2,)),
    ({"disposition": "evaluated(0)"}, (3,)),
    ({"disposition": "trained"}, (0, 1)),
    ({"disposition": "dropped"}, (2,)),
    ({"bucket": "truncated"}, (2,)),
    ({"bucket": "evaluation"}, (3,)),
    ({"bucket": "idle_by_tool"}, ()),
    ({"retried": False}, (0, 1, 2, 3)),
    ({"policy_version": 7}, (1,)),
    ({"reward_min": 0.5}, (0, 3)),
    ({"reward_max": 0.5}, (1, 3)),
    ({"reward_min": 0.25, "reward_max": 0.25}, (1,)),
    ({"task_id": "task-0", "verdict": "scored"}, (0, 1)),
)


def test_rollouts_are_found_by_every_filter(tenant: Tenant, filled: Filled) -> None:
    with tenant.sdk() as client:
        for filters, expected in FILTERS:
            found = [one.id for one in client.rollouts.list(filled.job["id"], **filters)]
            assert found == [filled.rollouts[index] for index in expected], filters
        in_group = client.rollouts.list(filled.job["id"], group_id=filled.test)
        assert [one.id for one in in_group] == [filled.rollouts[3]]


def test_pages_of_rollouts_are_whole_at_any_limit(tenant: Tenant, filled: Filled) -> None:
    with tenant.sdk() as client:
        found = [one.id for one in client.rollouts.list(filled.job["id"], limit=1)]
    assert found == filled.rollouts


def test_a_group_shows_the_step_that_it_trained(tenant: Tenant, filled: Filled) -> None:
    with tenant.sdk() as client:
        groups = {one.id: one for one in client.groups.list(filled.job["id"])}
        alone = client.groups.get(filled.train)
    assert alone == groups[filled.train]
    assert (alone.step, alone.staleness, alone.disposition) == (1, 1, "trained(1)")
    assert (groups[filled.test].step, groups[filled.test].purpose) == (None, "evaluation")


def test_a_rollout_shows_the_tries_that_ended(world: World, tenant: Tenant, filled: Filled) -> None:
    rollout = filled.rollouts[0]
    world.add(
        t.rollout_try, rollout_id=rollout, end="sandbox_lost", cause="killed", counts=True, hop=1,
        **{"try": 1},
    )  # fmt: skip
    world.change(t.rollout, rollout, **{"try": 2})
    with tenant.sdk() as client:
        shown = client.rollouts.get(rollout)
    assert (shown.current_try, shown.index) == (2, 0)
    (ended,) = shown.tries
    assert (ended.number, ended.end, ended.cause, ended.counts) == (
        1,
        "sandbox_lost",
        "killed",
        True,
    )


def test_a_dropped_rollout_is_followed_from_its_tries_to_the_trainers_row(
    world: World, tenant: Tenant, filled: Filled
) -> None:
    job, rollout = filled.job, filled.rollouts[2]
    world.add(
        t.rollout_try, rollout_id=rollout, end="engine_lost", cause="killed", counts=True, hop=2,
        **{"try": 1},
    )  # fmt: skip
    for hop, try_ in ((1, 1), (2, 1), (3, 2)):
        world.add(
            t.rollout_hop, rollout_id=rollout, hop=hop, attempt_id=job["attempt_id"],
            host_id=f"host_x_engine{hop}", engine_s=0.5, tool_wait_s=0.25, **{"try": try_},
        )  # fmt: skip
    world.add(
        t.train_step, job_id=job["id"], attempt_id=job["attempt_id"], step=1, epoch=1,
        group_ids=[filled.train], payloads=[], learning_rate=0.1, weights_sha="w1",
        weights_uri="weights", probe_uri="probe",
    )  # fmt: skip
    world.change(t.rollout_group, filled.train, payload_uri="payload/1", payload_sha="p1", usable=2)
    with tenant.sdk() as client:
        shown = client.rollouts.get(rollout)
    assert [(one.number, one.end, one.hop) for one in shown.tries] == [(1, "engine_lost", 2)]
    assert [(one.hop, one.try_number, one.host_id) for one in shown.hops] == [
        (1, 1, "host_x_engine1"),
        (2, 1, "host_x_engine2"),
        (3, 2, "host_x_engine3"),
    ]
    assert (shown.end, shown.verdict, shown.disposition) == (
        "timeout",
        "unscorable",
        "dropped(unscorable)",
    )
    assert (shown.group.disposition, shown.group.usable) == ("trained(1)", 2)
    assert shown.training is not None
    assert (shown.training.step, shown.training.weights_sha) == (1, "w1")
    assert shown.training.payload is not None
    assert (shown.training.payload.uri, shown.training.payload.sha256) == ("payload/1", "p1")
    assert "It ended with timeout. It is unscorable: bad_type." in shown.reason


REASONS: tuple[tuple[Mapping[str, Any], Mapping[str, Any], str], ...] = (
    ({}, {}, "Step 1 trained it with an advantage of 0.5."),
    ({"disposition": "dropped(zero_variance)"}, {}, "the same reward"),
    (
        {"disposition": "dropped(stale)"},
        {"cause": "oldest token 3, step 9"},
        "Cause: oldest token 3, step 9",
    ),
    ({"disposition": "dropped(shrunk)", "end": "sandbox_lost"}, {}, "failed: sandbox_lost"),
    ({"disposition": "pending", "closed_at": None}, {}, "It runs: try 1"),
    ({"disposition": "pending"}, {"graded_at": None}, "waits for the verdicts"),
    ({"disposition": "pending"}, {}, "waits for the commit of step 1"),
)


@pytest.mark.parametrize(("row", "group", "words"), REASONS, ids=str)
def test_a_rollout_says_in_a_sentence_what_became_of_it(
    world: World,
    tenant: Tenant,
    filled: Filled,
    row: Mapping[str, Any],
    group: Mapping[str, Any],
    words: str,
) -> None:
    now = datetime.now(UTC)
    rollout = filled.rollouts[0]
    world.change(t.rollout, rollout, **{"closed_at": now, "advantage": 0.5, **row})
    world.change(t.rollout_group, filled.train, **{"graded_at": now, **group})
    with tenant.sdk() as client:
        assert words in client.rollouts.get(rollout).reason


def test_the_ledger_counts_every_rollout_once(tenant: Tenant, filled: Filled) -> None:
    with tenant.sdk() as client:
        ledger = client.jobs.ledger(filled.job["id"])
    assert ledger.rollouts == 4 == sum(line.rollouts for line in ledger.lines)
    lines = {
        (line.purpose, line.end, line.verdict, line.disposition): line.rollouts
        for line in ledger.lines
    }
    assert lines == {
        ("train", "done", "scored", "trained(1)"): 2,
        ("train", "timeout", "unscorable", "dropped(unscorable)"): 1,
        ("evaluation", "done", "scored", "evaluated(0)"): 1,
    }


def test_a_trajectory_is_read_as_it_was_stored(
    world: World, tenant: Tenant, filled: Filled
) -> None:
    rollout = filled.rollouts[0]
    stored(world, rollout)
    with tenant.sdk() as client:
        shown = client.rollouts.trajectory(rollout)
    (segment,) = shown.segments
    assert segment.token_ids == [1, 2, 3]
    assert segment.mask == [0, 1, 1]
    assert segment.logprobs == [0.0, -0.5, -0.25]
    assert segment.versions == [-1, 0, 1]
    assert (shown.end, shown.metrics) == ("done", {"calls": 1.0})
    assert shown.messages == [{"role": "user", "content": "1+1"}]
    assert shown.turns[0]["finish"] == "stop"


def test_a_rollout_without_a_trajectory_says_so(tenant: Tenant, filled: Filled) -> None:
    with tenant.sdk() as client, pytest.raises(NotFound) as caught:
        client.rollouts.trajectory(filled.rollouts[1])
    assert caught.value.code == "no_trajectory"


def test_a_damaged_trajectory_is_never_shown_as_whole(
    world: World, tenant: Tenant, filled: Filled
) -> None:
    uri = stored(world, filled.rollouts[0])
    path = world.settings.home / "objects" / uri
    path.write_bytes(path.read_bytes()[:-1])
    with tenant.http() as http:
        answer = http.get(f"/v1/rollouts/{filled.rollouts[0]}/trajectory")
    assert (answer.status_code, answer.json()["code"]) == (500, "payload_unreadable")


def test_a_series_has_one_point_a_step_however_often_it_was_logged(
    world: World, tenant: Tenant
) -> None:
    job = tenant.ended()

    async def log(connection: AsyncConnection) -> None:
        for step in (1, 2, 3):
            for repeated in range(5):
                values = {"attempt_id": job["attempt_id"], "step": step, "name": "reward_mean"}
                await connection.execute(
                    insert(t.metric)
                    .values(**values, value=step + repeated / 10)
                    .on_conflict_do_nothing()
                )

    world.run(log)
    with tenant.sdk() as client:
        points = client.jobs.metrics(job["id"], names=["reward_mean"])
        later = client.jobs.metrics(job["id"], after_step=2)
    assert [(one.step, one.value) for one in points] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert [one.step for one in later] == [3]


def test_metrics_of_all_attempts_are_whole_over_pages(world: World, tenant: Tenant) -> None:
    job = tenant.ended()
    second = world.ids.new("att")
    world.add(t.attempt, id=second, job_id=job["id"], number=2, base_step=1)
    wanted = [
        (attempt, step, name)
        for attempt, steps in ((job["attempt_id"], (1, 2)), (second, (2, 3)))
        for step in steps
        for name in ("loss", "reward_mean")
    ]
    for attempt, step, name in wanted:
        world.add(t.metric, attempt_id=attempt, step=step, name=name, value=1.0)
    seen: list[tuple[str, int, str]] = []
    with tenant.http() as http:
        after = None
        while True:
            params = {"limit": 3} | ({"after": after} if after else {})
            page = http.get(f"/v1/jobs/{job['id']}/metrics", params=params).json()
            seen += [(one["attempt_id"], one["step"], one["name"]) for one in page["data"]]
            after = page["next"]
            if not page["has_more"]:
                break
    assert seen == wanted


def test_evaluations_are_listed_by_step(world: World, tenant: Tenant) -> None:
    job = tenant.ended()
    for step, score in ((10, 0.9), (0, 0.5)):
        world.add(
            t.evaluation, attempt_id=job["attempt_id"], step=step, tasks=4, scored=3,
            unscorable=1, score=score, seconds=1.5,
            estimates=[{"name": "pass@2", "value": score, "low": 0.0, "high": 1.0, "tasks": 4}],
        )  # fmt: skip
    with tenant.sdk() as client:
        listed = client.jobs.evaluations(job["id"])
    assert [(one.step, one.score) for one in listed] == [(0, 0.5), (10, 0.9)]
    assert [(one.name, one.value, one.high) for one in listed[1].estimates] == [
        ("pass@2", 0.9, 1.0)
    ]
