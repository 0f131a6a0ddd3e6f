"""What environments printed, page by page; where the time of a rollout went."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infra.names import CLEAN_JOB
from stores import tables as t
from stores.system import expiry
from tests.integration.api.chores import do_chores
from tests.integration.api.filled import Filled, stored
from tests.integration.api.world import Tenant, World

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def filled(tenant: Tenant) -> Filled:
    return Filled(tenant)


def printed(filled: Filled, lines: Sequence[str], rollout: str | None = None, **values: Any) -> str:
    """An output as a node agent stores it."""
    world, id = filled.world, filled.world.ids.new("out")
    data = "".join(json.dumps([0.5 * number, line]) + "\n" for number, line in enumerate(lines))
    uri, sha = world.store(f"outputs/{id}.jsonl", data.encode())
    row = {
        "component": "environment", "try": None if rollout is None else 1, "lost": 0,
        "started_at": AT, "host_id": "host_node0", "epoch": 1, **values,
    }  # fmt: skip
    world.add(
        t.environment_output, id=id, job_id=filled.job["id"], attempt_id=filled.job["attempt_id"],
        rollout_id=rollout, uri=uri, sha=sha, size=len(data), lines=len(lines), **row,
    )  # fmt: skip
    return id


def texts(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [one["text"] for one in answer.json()["data"]]


def test_lines_of_a_job_come_by_rollout_and_component(tenant: Tenant, filled: Filled) -> None:
    one, other = filled.rollouts[:2]
    first = printed(filled, ["a", "b"], one, lost=7)
    printed(filled, ["c"], other, **{"try": 2})
    printed(filled, ["graded"], one, component="grader", **{"try": None})
    printed(filled, ["for nobody"])
    path = f"/v1/jobs/{filled.job['id']}/logs"
    with tenant.http() as http:
        assert texts(http.get(path)) == ["a", "b", "c", "graded", "for nobody"]
        assert texts(http.get(path, params={"rollout": one})) == ["a", "b", "graded"]
        assert texts(http.get(path, params={"component": "grader"})) == ["graded"]
        assert texts(http.get(f"/v1/rollouts/{one}/logs")) == ["a", "b", "graded"]
        assert texts(http.get(f"/v1/rollouts/{other}/logs")) == ["c"]
        line = http.get(path).json()["data"][0]
        unknown = http.get(path, params={"component": "kernel"})
        cursor = http.get(path, params={"after": "nonsense"})
    assert line == {
        "id": f"{first}:0", "at": "2026-01-01T00:00:00Z", "component": "environment",
        "attempt_id": filled.job["attempt_id"], "host_id": "host_node0", "rollout_id": one,
        "try_number": 1, "text": "a", "lost_before": 7,
    }  # fmt: skip
    assert unknown.status_code == 422
    assert "grader" in unknown.json()["errors"][0]["message"]
    assert cursor.json()["errors"][0]["pointer"] == "/query/after"


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_of_lines_neither_gap_nor_repeat(tenant: Tenant, filled: Filled, limit: int) -> None:
    for number in range(70):
        printed(filled, [f"{number}.{line}" for line in range(1 + number % 3)])
    seen: list[str] = []
    params: dict[str, Any] = {"limit": limit}
    with tenant.http() as http:
        while True:
            answer = http.get(f"/v1/jobs/{filled.job['id']}/logs", params=params)
            seen += texts(answer)
            assert len(answer.json()["data"]) <= limit
            if not answer.json()["has_more"]:
                break
            params["after"] = answer.json()["next"]
    assert seen == [f"{number}.{line}" for number in range(70) for line in range(1 + number % 3)]


def test_an_output_whose_object_is_gone_says_so(tenant: Tenant, filled: Filled) -> None:
    printed(filled, ["a"])
    printed(filled, ["b"])
    (object_, *_) = sorted((filled.world.settings.home / "objects" / "outputs").rglob("*.jsonl"))
    object_.unlink()
    with tenant.http() as http:
        assert texts(http.get(f"/v1/jobs/{filled.job['id']}/logs")) == [
            "[this output is gone]", "b",
        ]  # fmt: skip


def test_lines_go_after_a_month(world: World, tenant: Tenant, filled: Filled) -> None:
    old = printed(filled, ["old"])
    printed(filled, ["new"])
    world.change(t.environment_output, old, created_at=datetime.now(UTC) - timedelta(days=31))

    async def look(connection: Any) -> None:
        for job, project in await expiry.jobs_to_clean(connection):
            await expiry.ask_to_clean(connection, world.ids.new("op"), job, project)

    world.run(look)
    assert do_chores(world, CLEAN_JOB) == 1
    with tenant.http() as http:
        assert texts(http.get(f"/v1/jobs/{filled.job['id']}/logs")) == ["new"]
    assert not (world.settings.home / "objects" / f"outputs/{old}.jsonl").exists()


def test_another_tenants_lines_and_spans_do_not_exist(world: World, filled: Filled) -> None:
    printed(filled, ["a"], filled.rollouts[0])
    stranger = world.tenant("stranger")
    with stranger.http() as http:
        for path in (
            f"/v1/jobs/{filled.job['id']}/logs",
            f"/v1/rollouts/{filled.rollouts[0]}/logs",
            f"/v1/rollouts/{filled.rollouts[0]}/spans",
        ):
            assert http.get(path).status_code == 404, path


def test_spans_tell_where_the_time_of_a_rollout_went(tenant: Tenant, filled: Filled) -> None:
    world, rollout = filled.world, filled.rollouts[0]

    def at(seconds: float) -> datetime:
        return AT + timedelta(seconds=seconds)

    shared = {"attempt_id": filled.job["attempt_id"], "rollout_id": rollout}
    world.change(t.rollout, rollout, created_at=at(0), closed_at=at(20), **{"try": 2})
    world.change(t.rollout_group, filled.train, graded_at=at(26), closed_at=at(21))
    for number, start, end in ((1, 1, 5), (2, 7, 19.5)):
        world.add(
            t.sandbox_interval, purpose="agent", number=number, host_id="host_node0", epoch=1,
            started_at=at(start), ended_at=at(end), **shared,
        )  # fmt: skip
    world.add(
        t.sandbox_interval, purpose="grader", number=1, host_id="host_node0", epoch=1,
        started_at=at(23), ended_at=at(25), **shared,
    )  # fmt: skip
    world.add(
        t.rollout_try, rollout_id=rollout, end="env_failed", cause="x", counts=True, hop=1,
        ended_at=at(6), **{"try": 1},
    )  # fmt: skip
    for hop, start, ended_at in ((1, 2, None), (2, 9, at(19))):
        world.add(
            t.rollout_hop, hop=hop, host_id="host_engine0", placed_at=at(start),
            ended_at=ended_at, **{"try": hop}, **shared,
        )  # fmt: skip
    stored(world, rollout, try_=2, generate_s=4.0, tool_s=1.5)
    with tenant.http() as http:
        answer = http.get(f"/v1/rollouts/{rollout}/spans").json()
    told = [
        (one["name"], one["try_number"], one["hop"], one["turn"], one["seconds"])
        for one in answer["spans"]
    ]
    assert told == [
        ("wait_for_sandbox", 1, None, None, 1.0),
        ("sandbox", 1, None, None, 4.0),
        ("placement", 1, 1, None, None),
        ("wait_for_sandbox", 2, None, None, 1.0),
        ("sandbox", 2, None, None, 12.5),
        ("placement", 2, 2, None, 10.0),
        ("generate", 2, None, 0, 4.0),
        ("tool", 2, None, 0, 1.5),
        ("unattributed", 2, 2, None, 4.5),
        ("wait_for_grading", None, None, None, 3.0),
        ("grader_sandbox", None, None, None, 2.0),
        ("wait_for_batch", None, None, None, None),
    ]
    assert answer["not_measured"]


def test_spans_of_a_rollout_that_has_just_been_opened_are_few(
    tenant: Tenant, filled: Filled
) -> None:
    with tenant.http() as http:
        answer = http.get(f"/v1/rollouts/{filled.rollouts[3]}/spans")
    assert answer.status_code == 200
    assert answer.json()["spans"] == []
