"""The filled installation, and how a page of it is measured."""

import json
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from sqlalchemy import create_engine

from stores import tables as t
from stores.rollouts import Filters, page_query
from stores.unit_of_work import sqlalchemy_url
from tests.integration.api.world import Tenant

P95_MAX_S: Final = 0.200
PAGES: Final = 40
"""Pages of one filter that are measured, from random places of the list and in both orders."""


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
