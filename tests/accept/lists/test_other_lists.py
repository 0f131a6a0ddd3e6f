"""The other lists of a job with a million rollouts, and of its project: p95 of one page.

Events, series, checkpoints with their evaluations, and audit events in the numbers that such a job
leaves behind.
"""

import statistics
import sys
import time
from typing import Any, Final

import psycopg
import pytest

from tests.accept.lists.measured import P95_MAX_S, PAGES, Lists
from tests.support.requirements import requires
from venusrl.client import Client

pytestmark = [pytest.mark.accept, requires("postgres")]

STEPS: Final = 7_000
CHECKPOINTS: Final = 700
AUDIT_EVENTS: Final = 100_000

EVENTS: Final = """
insert into job_event (job_id, seq, type, body)
select %(job)s, 1000 + n, case when n %% 20 = 0 then 'checkpoint.ready' else 'step.committed' end,
    jsonb_build_object('step', n) from generate_series(1, %(steps)s) n
"""
SERIES: Final = """
insert into metric (attempt_id, step, name, value)
select %(attempt)s, n, 'series_' || s, n from generate_series(1, %(steps)s) n,
    generate_series(1, 20) s
"""
SAVED: Final = """
insert into checkpoint (id, job_id, attempt_id, organization_id, step, state, reason, weights_sha,
    next_ordinal, unconsumed)
select 'ckpt_' || lpad(n::text, 9, '0'), %(job)s, %(attempt)s, %(org)s, n * 10,
    case when n > %(checkpoints)s - 3 then 'ready' else 'expired' end, 'every', 'w', n, '{}'
from generate_series(1, %(checkpoints)s) n
"""
EVALUATED: Final = """
insert into evaluation (attempt_id, step, tasks, scored, unscorable, score, seconds, selected)
select %(attempt)s, n * 10, 200, 200, 0, 0.5, 1.0, 0.5 from generate_series(1, %(checkpoints)s) n
"""
AUDITED: Final = """
insert into audit_event (id, organization_id, project_id, actor, action, target, address, request_id,
    outcome)
select 'aud_' || lpad(n::text, 12, '0'), %(org)s, %(project)s, 'key_' || n %% 7, 'jobs.pause',
    'job_' || n %% 1000, '127.0.0.1', 'req', 'done' from generate_series(1, %(audited)s) n
"""

PATHS: Final = (
    "/v1/jobs",
    "/v1/jobs/{job}",
    "/v1/jobs/{job}/events",
    "/v1/jobs/{job}/events?types=checkpoint.ready",
    "/v1/jobs/{job}/metrics?names=series_7&limit=500",
    "/v1/jobs/{job}/metrics?limit=500&after_step=6000",
    "/v1/jobs/{job}/checkpoints",
    "/v1/jobs/{job}/checkpoints?order=desc",
    "/v1/jobs/{job}/evaluations",
    "/v1/jobs/{job}/logs",
    "/v1/checkpoints",
    "/v1/checkpoints?state=ready",
    "/v1/audit-events",
    "/v1/audit-events?target=job_7&order=desc",
    "/v1/audit-events?actor=key_3",
    "/v1/environments",
    "/v1/models",
    "/v1/datasets",
    "/v1/webhooks",
    "/v1/api-keys",
)


@pytest.fixture(scope="module")
def filled(lists: Lists) -> Lists:
    """The same job with everything else that it left."""
    tenant = lists.tenant
    values: dict[str, Any] = {
        "job": lists.job,
        "org": tenant.organization_id,
        "project": tenant.project_id,
        "steps": STEPS,
        "checkpoints": CHECKPOINTS,
        "audited": AUDIT_EVENTS,
    }
    with psycopg.connect(lists.url) as connection:
        found = connection.execute("select attempt_id from job where id = %s", (lists.job,))
        ((attempt,),) = found.fetchall()
        for statement in (EVENTS, SERIES, SAVED, EVALUATED, AUDITED):
            connection.execute(statement.encode(), {**values, "attempt": attempt})
    with psycopg.connect(lists.url, autocommit=True) as connection:
        connection.execute("analyze")
    return lists


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_quick(filled: Lists, path: str) -> None:
    times, world = [], filled.tenant.world
    with Client(world.address, world.admin_key) as admin:
        key = admin.keys.create("lists", filled.tenant.project_id, role="admin").secret
    with world.http(key) as http:
        for _ in range(PAGES):
            started = time.perf_counter()
            answer = http.get(path.format(job=filled.job))
            times.append(time.perf_counter() - started)
            assert answer.status_code == 200, answer.text
    p95_s = statistics.quantiles(times, n=20)[-1]
    sys.stdout.write(f"{path}: p95 {p95_s * 1000:.0f} ms\n")
    assert p95_s < P95_MAX_S
