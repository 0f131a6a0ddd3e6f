"""Filter and page at a million rollouts: p95 of one page through the API, and the plan behind it."""

import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import create_engine

from stores import tables as t
from stores.rollouts import Filters, page_query
from stores.unit_of_work import sqlalchemy_url
from supervisor.postgres import Cluster
from tests.accept.lists.fill import ROLLOUTS, fill
from tests.integration.api.world import Tenant, installation
from tests.support.requirements import requires
from tests.support.services import TEMPLATE

pytestmark = [pytest.mark.accept, requires("postgres")]

P95_MAX_S: Final = 0.200
PAGES: Final = 40
"""Pages of one filter that are measured, from random places of the list and in both orders."""

ROLLOUT_FILTERS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"step": 3000},
    {"task_id": "task-17"},
    {"task_id": "no such task"},
    {"purpose": "evaluation"},
    {"end": "sandbox_lost"},
    {"end": "done"},
    {"end": "cancelled"},
    {"verdict": "unscorable"},
    {"disposition": "dropped(stale)"},
    {"disposition": "trained(6999)"},
    {"disposition": "dropped"},
    {"disposition": "trained"},
    {"bucket": "infrastructure"},
    {"bucket": "zero_variance"},
    {"bucket": "stale"},
    {"policy_version": 6000},
    {"reward_min": 0.9},
    {"reward_max": 0.01},
    {"reward_min": 0.4999, "reward_max": 0.5001},
    {"reward_min": 5.0},
    {"end": "truncated", "verdict": "scored", "reward_min": 0.8},
    {"purpose": "evaluation", "disposition": "evaluated(3)"},
    {"task_id": "task-3", "end": "truncated"},
)

GROUP_FILTERS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"step": 3000},
    {"task_id": "task-17"},
    {"purpose": "evaluation"},
    {"disposition": "dropped(stale)"},
    {"disposition": "evaluated"},
    {"policy_version": 6000},
    {"reward_min": 0.999},
)


class Lists:
    """The filled installation."""

    def __init__(self, tenant: Tenant, url: str, job: Mapping[str, Any]) -> None:
        """Of one job."""
        self.tenant, self.url, self.job = tenant, url, str(job["id"])

    def p95(self, path: str, filters: Mapping[str, Any], cursors: list[str]) -> float:
        """Of one page through the API, in seconds."""
        chance, times = random.Random(7), []
        with self.tenant.http() as http:
            for number in range(PAGES):
                order = "desc" if number % 2 else "asc"
                params = {**filters, "order": order, "limit": 50}
                if number > 1:
                    params["after"] = chance.choice(cursors)
                started = time.perf_counter()
                answer = http.get(f"/v1/jobs/{self.job}/{path}", params=params)
                times.append(time.perf_counter() - started)
                assert answer.status_code == 200, answer.text
        return statistics.quantiles(times, n=20)[-1]

    def plan(self, filters: Mapping[str, Any]) -> dict[str, Any]:
        """Postgres's plan for a first page of rollouts."""
        query = page_query(self.tenant.project_id, self.job, Filters(**filters))
        compiled = query.order_by(t.rollout.c.id).limit(51).compile(
            dialect=create_engine(sqlalchemy_url(self.url)).dialect, compile_kwargs={"literal_binds": True}
        )  # fmt: skip
        with psycopg.connect(self.url) as connection:
            row = connection.execute(f"explain (format json) {compiled}".encode()).fetchone()
        assert row is not None
        shown = row[0] if isinstance(row[0], list) else json.loads(row[0])
        plan: dict[str, Any] = shown[0]["Plan"]
        return plan


@pytest.fixture(scope="module")
def lists(postgres_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lists]:
    postgres_cluster.create_database("lists", TEMPLATE)
    url = postgres_cluster.url("lists")
    home: Path = tmp_path_factory.mktemp("lists")
    with installation(url, home) as world:
        tenant = world.tenant()
        job = tenant.ended()
        started = time.perf_counter()
        fill(url, job["id"], job["attempt_id"], tenant.organization_id)
        sys.stdout.write(f"\n{ROLLOUTS} rollouts in {time.perf_counter() - started:.1f} s\n")
        yield Lists(tenant, url, job)
    postgres_cluster.drop_database("lists")


@pytest.fixture(scope="module")
def cursors(lists: Lists) -> dict[str, list[str]]:
    found = {}
    with psycopg.connect(lists.url) as connection:
        for path, table in (("rollouts", "rollout"), ("groups", "rollout_group")):
            query = f"select id from {table} tablesample bernoulli (0.02) repeatable (1)"
            found[path] = [str(row[0]) for row in connection.execute(query.encode())]
    return found


@pytest.mark.parametrize("filters", ROLLOUT_FILTERS, ids=str)
def test_a_page_of_rollouts_is_quick(
    lists: Lists, cursors: dict[str, list[str]], filters: Mapping[str, Any]
) -> None:
    p95_s = lists.p95("rollouts", filters, cursors["rollouts"])
    sys.stdout.write(f"rollouts {filters}: p95 {p95_s * 1000:.0f} ms\n")
    assert p95_s < P95_MAX_S


@pytest.mark.parametrize("filters", GROUP_FILTERS, ids=str)
def test_a_page_of_groups_is_quick(
    lists: Lists, cursors: dict[str, list[str]], filters: Mapping[str, Any]
) -> None:
    p95_s = lists.p95("groups", filters, cursors["groups"])
    sys.stdout.write(f"groups {filters}: p95 {p95_s * 1000:.0f} ms\n")
    assert p95_s < P95_MAX_S


@pytest.mark.parametrize("filters", ROLLOUT_FILTERS, ids=str)
def test_no_page_reads_the_whole_table(lists: Lists, filters: Mapping[str, Any]) -> None:
    nodes = list(_nodes(lists.plan(filters)))
    of_rollouts = [node for node in nodes if node.get("Relation Name") == "rollout"]
    assert of_rollouts, nodes
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"], nodes


def test_pages_of_a_rare_filter_are_whole(lists: Lists) -> None:
    with psycopg.connect(lists.url) as connection:
        query = b"select id from rollout where bucket = 'infrastructure' order by id"
        wanted = [str(row[0]) for row in connection.execute(query)]
    with lists.tenant.sdk() as client:
        found = [one.id for one in client.rollouts.list(lists.job, bucket="infrastructure")]
    assert found == wanted
    assert len(wanted) > 4000


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
