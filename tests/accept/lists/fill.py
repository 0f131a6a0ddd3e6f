"""A job with a million rollouts, written by the server itself in seconds: what lists are measured on.

Shaped like a long job: rewards rise, ends and fates have rare values, evaluation stands at the end
of the id order.
"""

from typing import Final

import psycopg
from sqlalchemy import create_engine

from stores import tables as t
from stores.unit_of_work import sqlalchemy_url

GROUP_SIZE: Final = 8
ROLLOUTS: Final = 1_000_000
TRAIN_GROUPS: Final = 112_500
EVALUATION_GROUPS: Final = 12_500
TASKS: Final = 1_000

GROUPS_OF_JOB: Final = """
insert into rollout_group (id, job_id, attempt_id, organization_id, ordinal, purpose, task_id,
    environment_version_id, policy_version, size, open, closed_at, graded_at, usable, mean_reward,
    disposition)
select 'grp_' || %(tail)s || '_' || lpad(o::text, 9, '0'), %(job)s, 'att_' || %(tail)s, %(org)s, o,
    %(purpose)s, 'task-' || (o %% %(tasks)s), 'ev', (n / 16)::int, 8, 0, now(), now(), 8,
    least(1.0, n / %(count)s::float8),
    case when %(purpose)s = 'evaluation' then 'evaluated(' || (n / 512) || ')'
         when n %% 5 = 0 then 'dropped(zero_variance)'
         when n %% 97 = 0 then 'dropped(stale)'
         else 'trained(' || (n / 16 + 1) || ')' end
from (select n, n + %(base)s as o from generate_series(0, %(count)s - 1) n) numbered
"""

ROLLOUTS_OF_JOB: Final = """
insert into rollout (id, group_id, job_id, attempt_id, organization_id, index, purpose, task_id,
    closed_at, "end", verdict, reward, disposition, turns, tokens, sampled_tokens, oldest_version,
    newest_version)
select 'ro_' || substr(g.id, 5) || '_' || lpad(i::text, 3, '0'), g.id, g.job_id, g.attempt_id,
    g.organization_id, i, g.purpose, g.task_id, now(), e.e,
    case when e.e in ('sandbox_lost', 'env_failed') then 'unscorable' else 'scored' end,
    case when e.e in ('sandbox_lost', 'env_failed') then null
         else round((g.mean_reward * (0.5 + i / 16.0))::numeric, 3)::float8 end,
    case when e.e in ('sandbox_lost', 'env_failed') then 'dropped(shrunk)' else g.disposition end,
    3, 900, 300, g.policy_version, g.policy_version + 1
from rollout_group g, generate_series(0, 7) i,
    lateral (select case when (g.ordinal * 8 + i) %% 50021 = 0 then 'sandbox_lost'
                         when (g.ordinal * 8 + i) %% 211 = 0 then 'env_failed'
                         when (g.ordinal + i) %% 23 = 0 then 'truncated'
                         else 'done' end as e) e
where g.job_id = %(job)s
"""

MEMBERS_OF_JOB: Final = """
insert into batch_member (job_id, attempt_id, step, position, group_id, staleness)
select g.job_id, g.attempt_id, (g.ordinal / 16 + 1)::int, (g.ordinal %% 16)::int, g.id, 1
from rollout_group g where g.job_id = %(job)s and g.disposition like 'trained%%'
"""


def fill(url: str, job: str, attempt: str, organization: str) -> None:
    """Write the groups, rollouts and batches of an existing job.

    Indexes are dropped and made again around it: filling them row by row takes minutes.
    """
    engine = create_engine(sqlalchemy_url(url))
    indexes = [one for table in (t.rollout, t.rollout_group) for one in table.indexes]
    with engine.begin() as connection:
        for index in indexes:
            index.drop(connection)
    tail = attempt.removeprefix("att_")
    with psycopg.connect(url) as connection:
        # Foreign keys are right by construction; four look-ups a row would take most of the time.
        connection.execute("set session_replication_role = replica")
        shared = {"tail": tail, "job": job, "org": organization, "tasks": TASKS}
        for purpose, base, count in (
            ("train", 0, TRAIN_GROUPS),
            ("evaluation", 900_000_000, EVALUATION_GROUPS),
        ):
            values = {**shared, "purpose": purpose, "base": base, "count": count}
            connection.execute(GROUPS_OF_JOB, values)
        connection.execute(ROLLOUTS_OF_JOB, shared)
        connection.execute(MEMBERS_OF_JOB, shared)
    with engine.begin() as connection:
        connection.exec_driver_sql("set local maintenance_work_mem = '256MB'")
        for index in indexes:
            index.create(connection)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze rollout")
        connection.execute("vacuum analyze rollout_group")
        connection.execute("vacuum analyze batch_member")
    engine.dispose()
