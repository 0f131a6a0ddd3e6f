"""Usage: intervals cut into buckets, nothing twice, nothing left out, the same as the bill."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stores import tables as t
from tests.integration.api.test_bills import START, Held
from tests.integration.api.world import Tenant, World

DAY = timedelta(days=1)


@pytest.fixture
def held(tenant: Tenant) -> Held:
    """A job of long ago that held hosts and sandboxes for seconds around midnight."""
    found = Held(tenant)
    world = tenant.world
    long_ago = START - timedelta(hours=1)
    world.change(t.attempt, found.job["attempt_id"], created_at=long_ago)
    return found


def usage(tenant: Tenant, **asked: Any) -> list[dict[str, Any]]:
    """All lines, two a page."""
    params = {
        "since": (START - DAY).isoformat(),
        "until": (START + 2 * DAY).isoformat(),
        "limit": 2,
        **asked,
    }
    lines: list[dict[str, Any]] = []
    with tenant.http() as http:
        while True:
            answer = http.get("/v1/usage", params=params)
            assert answer.status_code == 200, answer.text
            lines += answer.json()["data"]
            if not answer.json()["has_more"]:
                return lines
            params["after"] = answer.json()["next"]


def sums(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds by resource."""
    found: dict[str, float] = {}
    for line in lines:
        found[line["resource"]] = found.get(line["resource"], 0.0) + line["seconds"]
    return found


@pytest.mark.parametrize("group_by", ["job", "project", "resource"])
@pytest.mark.parametrize("bucket", ["hour", "day"])
def test_lines_sum_to_the_bill_however_they_are_cut(
    tenant: Tenant, held: Held, group_by: str, bucket: str
) -> None:
    with tenant.sdk() as client:
        wall = client.jobs.bill(held.job["id"]).wall_s
    lines = usage(tenant, group_by=group_by, bucket=bucket)
    assert sums(lines) == pytest.approx(wall)
    named = {(line["job_id"], line["project_id"]) for line in lines}
    assert (
        named
        == {
            "job": {(held.job["id"], tenant.project_id)},
            "project": {(None, tenant.project_id)},
            "resource": {(None, None)},
        }[group_by]
    )


def test_an_interval_is_cut_where_a_bucket_ends(tenant: Tenant, held: Held) -> None:
    attempt = held.job["attempt_id"]
    tenant.world.add(
        t.host_interval, host_id=f"host_{attempt}_engine9", number=1, kind="engine", epoch=1,
        job_id=held.job["id"], attempt_id=attempt, owner="k", opened="declared",
        started_at=START + timedelta(minutes=50), ended_at=START + timedelta(hours=2, minutes=10),
    )  # fmt: skip
    lines = [x for x in usage(tenant, bucket="hour") if x["resource"] == "engine"]
    assert [line["seconds"] for line in lines] == pytest.approx([100.0 + 600.0, 3600.0, 600.0])
    edges = [(line["bucket_start"], line["bucket_end"]) for line in lines]
    assert [end for _, end in edges[:-1]] == [start for start, _ in edges[1:]]


def test_halves_of_a_range_sum_to_the_whole(tenant: Tenant, held: Held) -> None:
    middle = (START + timedelta(seconds=33)).isoformat()
    whole = sums(usage(tenant))
    first, second = sums(usage(tenant, until=middle)), sums(usage(tenant, since=middle))
    assert first["engine"] == pytest.approx(33.0)
    assert {name: first.get(name, 0.0) + second.get(name, 0.0) for name in whole} == pytest.approx(
        whole
    )
    cut = usage(tenant, until=middle)
    assert {datetime.fromisoformat(line["bucket_end"]).isoformat() for line in cut} == {middle}


def test_what_is_held_now_counts_up_to_now(tenant: Tenant, held: Held) -> None:
    attempt, now = held.job["attempt_id"], datetime.now(UTC)
    tenant.world.add(
        t.host_interval, host_id=f"host_{attempt}_engine8", number=1, kind="engine", epoch=1,
        job_id=held.job["id"], attempt_id=attempt, owner="k", opened="declared",
        started_at=now - timedelta(seconds=60),
    )  # fmt: skip
    asked = {"since": (now - DAY).isoformat(), "until": (now + DAY).isoformat()}
    (line, *rest) = usage(tenant, **asked)
    seconds = line["seconds"] + sum(one["seconds"] for one in rest)
    assert 60.0 <= seconds < 120.0


def test_a_key_sees_its_own_projects(world: World, tenant: Tenant, held: Held) -> None:
    assert usage(world.tenant("stranger")) == []
    with world.http() as http:
        asked = {"name": "o", "organization_id": tenant.organization_id, "role": "admin"}
        organization = http.post("/v1/api-keys", json=asked).json()
    other = Tenant(world, tenant.organization_id, "", organization["secret"])
    assert sums(usage(other, group_by="project")) == sums(usage(tenant))


@pytest.mark.parametrize(
    "asked",
    [
        {"since": "0001-01-01T00:00:00Z"},
        {"until": "0001-01-01T00:00:00+14:00", "since": None},
        {"until": "9999-12-31T23:59:59Z"},
        {"since": "2020-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
        {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
        {"since": "2026-01-01T00:00:00"},
        {"after": "nonsense"},
        {"after": "99999999999:job_x:engine"},
        {"group_by": "task"},
    ],
)
def test_a_range_that_is_none_is_refused(tenant: Tenant, asked: dict[str, Any]) -> None:
    params = {name: value for name, value in asked.items() if value is not None}
    with tenant.http() as http:
        refused = http.get("/v1/usage", params=params)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
