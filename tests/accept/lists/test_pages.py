"""Filter and page at a million rollouts: p95 of one page through the API, and the plan behind it."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg
import pytest

from tests.accept.lists.measured import P95_MAX_S, Lists
from tests.support.requirements import requires

pytestmark = [pytest.mark.accept, requires("postgres")]

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
    {"retried": True},
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

LARGE: Final = frozenset({"rollout", "rollout_group", "batch_member"})
"""Tables that grow with a job; reading the few rows of the others is no fault."""

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
    whole = [node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"]
    assert not LARGE & set(whole), nodes


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
