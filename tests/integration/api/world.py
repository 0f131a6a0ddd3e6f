"""A gateway that really listens, on a real database; rows that other processes would have written."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Table, insert, select, update
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from api import bootstrap
from api.app import create_app
from infra.ids import IdSource
from infra.settings import Settings
from infra.vault import make_key_file
from stores import tables as t
from stores.blobs import Blobs
from stores.system.preparation import Validated, write_validation
from stores.unit_of_work import Database
from tests.support.waiting import wait_until
from venusrl.client import Client, Patience

T = TypeVar("T")

TASKS: Mapping[str, Any] = {"train": {"uri": "tasks/1.jsonl", "sha": "s", "count": 1}}
"""Task lists of a job that has run."""

SPEC: Mapping[str, Any] = {
    "name": "a job",
    "model": {"base": "tiny-calc"},
    "environments": [{"ref": "calc"}],
}
"""The smallest spec."""

TICK_S = 1.0
"""The date in answers is renewed so often."""

CALC = Path(__file__).resolve().parents[3] / "environments" / "builtin" / "calc"


_idle: dict[tuple[int, float], list[FastAPI]] = {}
"""Gateways that serve nobody now, by what `create_app` builds into one."""


class _Server(uvicorn.Server):
    """Ends when it is told to; the original looks ten times a second and pauses before it goes."""

    _loop: asyncio.AbstractEventLoop
    _ending: asyncio.Event

    def end(self) -> None:
        """Ask it to end; from any thread."""
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._ending.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
            await server.wait_closed()
        await self.lifespan.shutdown()


@contextmanager
def listening(settings: Settings, port: int = 0) -> Iterator[str]:
    """The gateway on a thread of its own; its address.

    An idle one is started again: what its routes take is worked out at their first request, which
    costs more than most tests do.
    """
    idle = _idle.setdefault((settings.limits.request_bytes, settings.intervals.client_send_s), [])
    app = idle.pop() if idle else create_app(settings)
    app.state.settings = settings
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_config=None, timeout_graceful_shutdown=1
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, name="gateway")
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), 20.0)
        assert server.started, "the gateway did not start"
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        if thread.is_alive():
            server.end()
        thread.join(10.0)
        if not thread.is_alive():
            idle.append(app)


@dataclass(slots=True)
class World:
    """One installation with its admin key."""

    settings: Settings
    address: str
    admin_key: str
    ids: IdSource = field(default_factory=IdSource)

    def run(self, act: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run one transaction on the database, as another process would."""

        async def once() -> T:
            database = Database(self.settings.database_url, 1)
            try:
                async with database.begin() as connection:
                    return await act(connection)
            finally:
                await database.close()

        return asyncio.run(once())

    def add(self, table: Table, **values: Any) -> None:
        """Insert a row."""

        async def act(connection: AsyncConnection) -> None:
            await connection.execute(insert(table).values(values))

        self.run(act)

    def rows(self, table: Table) -> list[Row[Any]]:
        """All rows of a table."""

        async def act(connection: AsyncConnection) -> list[Row[Any]]:
            return list((await connection.execute(select(table))).all())

        return self.run(act)

    def change(self, table: Table, id: str, **values: Any) -> None:
        """Update a row by id."""

        async def act(connection: AsyncConnection) -> None:
            await connection.execute(update(table).where(table.c.id == id).values(values))

        self.run(act)

    def store(self, path: str, data: bytes) -> tuple[str, str]:
        """Write an object; its uri and sha."""
        blob = asyncio.run(Blobs(self.settings.object_store_url).create(path, data))
        return blob.uri, blob.sha

    def http(self, key: str | None = None, **headers: str) -> httpx.Client:
        """A plain HTTP client; without a key that of the admin."""
        credentials = {"Authorization": f"Bearer {key or self.admin_key}"}
        return httpx.Client(
            base_url=self.address,
            headers=credentials | headers,
            timeout=30.0,
            # Plain HTTP: reading the certificates would cost more than the request.
            verify=False,
        )

    def tenant(self, name: str = "acme", role: str = "developer") -> "Tenant":
        """A new organization with a project and a key in it."""
        with Client(self.address, self.admin_key) as admin:
            organization = admin.organizations.create(name)
            project = admin.projects.create("main", organization.id)
            key = admin.keys.create("tests", project.id, role=role)  # type: ignore[arg-type]
        return Tenant(self, organization.id, project.id, key.secret)


@dataclass(slots=True)
class Tenant:
    """A key of one project, and what others would write into the project."""

    world: World
    organization_id: str
    project_id: str
    key: str

    def http(self, **headers: str) -> httpx.Client:
        """A plain HTTP client."""
        return self.world.http(self.key, **headers)

    def sdk(self) -> Client:
        """The client library, which does not wait long in a test."""
        return self.sdk_at(self.world.address)

    def sdk_at(self, address: str) -> Client:
        """The client library at another gateway's address."""
        patience = Patience(tries=100, jitter=lambda _low, _high: 0.1)
        return Client(address, self.key, patience=patience)

    def environment(self, name: str = "calc", state: str = "ready") -> str:
        """A version whose validation has ended; its id."""
        world, environment, version = self.world, self.world.ids.new("env"), ""
        owner = {"organization_id": self.organization_id, "project_id": self.project_id}
        world.add(t.environment, id=environment, name=name, latest_version=1, **owner)
        version = world.ids.new("ev")
        world.add(
            t.environment_version,
            id=version,
            environment_id=environment,
            version=1,
            content_sha=f"sha256:{name}",
            package_uri="environments/none.tar.gz",
            package_sha="0",
            manifest={"name": name},
            state=state,
            splits={"train": 100, "test": 20},
        )
        return version

    def validated(self, version_id: str, passed: bool = True) -> None:
        """End a version's validation as the chore would."""
        finding = {"pointer": "/env.py", "code": "package_invalid", "message": "it does not start"}
        outcome = Validated(
            passed=passed,
            findings=() if passed else (finding,),
            splits={"train": 3, "test": 2} if passed else {},
        )
        self.world.run(lambda connection: write_validation(connection, version_id, outcome))

    def job(self, **changes: Any) -> dict[str, Any]:
        """A job as the API answered it; makes the environment `calc` if need be."""
        if not any(r.project_id == self.project_id for r in self.world.rows(t.environment)):
            self.environment()
        with self.http() as http:
            answer = http.post("/v1/jobs", json={**SPEC, **changes})
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    def ended(self, state: str = "succeeded", **changes: Any) -> dict[str, Any]:
        """A job that has run."""
        job = self.job(**changes)
        values: dict[str, Any] = {"state": state, "observed_generation": 1, "tasks": TASKS}
        if state == "failed":
            values["failure"] = {"code": "trainer_failed", "component": "trainer", "hint": "nan"}
        self.world.change(t.job, job["id"], **values)
        return job

    def checkpoint(
        self,
        job: Mapping[str, Any],
        content: bytes = b"0123456789",
        *,
        step: int = 5,
        state: str = "ready",
    ) -> str:
        """A checkpoint with one file; its id."""
        checkpoint = self.world.ids.new("ckpt")
        uri, sha = self.world.store(f"jobs/{job['id']}/{checkpoint}/model.bin", content)
        self.world.add(
            t.checkpoint,
            id=checkpoint,
            job_id=job["id"],
            attempt_id=job["attempt_id"],
            organization_id=self.organization_id,
            step=step,
            state=state,
            reason="end",
            weights_sha="w",
            files=[{"name": "model.bin", "uri": uri, "sha": sha, "size": len(content)}],
            next_ordinal=40,
            unconsumed=[38, 39],
        )
        return checkpoint


@contextmanager
def installation(database_url: str, home: Path, **environ: str) -> Iterator[World]:
    """A listening gateway and its admin key."""
    settings = Settings.from_env({"DATABASE_URL": database_url, "VENUS_HOME": str(home), **environ})
    key = asyncio.run(bootstrap.ensure(settings))
    make_key_file(home)
    with listening(settings) as address:
        yield World(settings, address, key)
