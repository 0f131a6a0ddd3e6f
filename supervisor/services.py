"""What `venus up` starts, in which stage, with which environment, and how it knows each serves."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import psycopg

from infra.names import CHORE_QUEUE, HOST_QUEUE, PLAN_QUEUE
from infra.readiness import READY_VARIABLE, is_marked_ready
from infra.settings import Settings
from supervisor.launch import Launch
from supervisor.layout import Layout
from supervisor.postgres import Cluster, plan_cluster
from supervisor.probes import (
    BWRAP_VARIABLE,
    TREE,
    NoSandboxError,
    is_port_free,
    probe_bwrap,
    working_bwrap,
)
from supervisor.processes import Service
from supervisor.valkey import Broker, plan_broker

HTTP_TIMEOUT_S: Final = 1.0
"""A readiness answer slower than this is asked for again."""

CHORE_CHILDREN: Final = 1
"""Chores are short and few; one child leaves the cores to engines and trainers."""

PLAN_CHILDREN: Final = 1
"""Plans wait for one another and for nobody else; each is minutes of one core."""

WORKER_GRACE_S: Final = 15.0
"""A keeper ends its host, which may be writing a checkpoint's file, before it is killed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings with every address filled in, and the embedded servers that must be started."""

    settings: Settings
    layout: Layout
    cluster: Cluster | None
    broker: Broker | None

    def environ(self) -> dict[str, str]:
        """What every child of ours gets on top of our own environment."""
        settings = self.settings
        inherited = os.environ.get("PYTHONPATH", "")
        bwrap = working_bwrap()
        return {
            **os.environ,
            **({BWRAP_VARIABLE: str(bwrap)} if bwrap else {}),
            "VENUS_HOME": str(settings.home),
            "DATABASE_URL": settings.database_url,
            "BROKER_URL": settings.broker_url,
            "OBJECT_STORE_URL": settings.object_store_url,
            "VENUS_API_HOST": settings.api_host,
            "VENUS_API_PORT": str(settings.api_port),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(TREE), inherited))),
            "PYTHONUNBUFFERED": "1",
        }


def make_plan(settings: Settings) -> Plan:
    """Fill in addresses: embedded servers where no URL is given, a free port if ours is taken.

    Raises NoSandboxError, and what the embedded servers' plans raise.
    """
    sandboxes = probe_bwrap()
    if not sandboxes.is_ok:
        raise NoSandboxError(f"{sandboxes.detail}; {sandboxes.remedy}")
    layout = Layout(settings.home).make()
    cluster = None if settings.database_url else plan_cluster(layout)
    broker = None if settings.broker_url else plan_broker(layout)
    return Plan(
        settings=replace(
            settings,
            database_url=cluster.url() if cluster else settings.database_url,
            broker_url=broker.url if broker else settings.broker_url,
            api_port=choose_port(settings.api_host, settings.api_port),
        ),
        layout=layout,
        cluster=cluster,
        broker=broker,
    )


def choose_port(host: str, wanted: int) -> int:
    """`wanted` if it is free, else one that the system gives. Kept over restarts of the API."""
    if wanted != 0 and is_port_free(host, wanted):
        return wanted
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def embedded_services(plan: Plan) -> list[Service]:
    """First stage: the servers that no URL replaces."""
    services = []
    if plan.cluster is not None:
        cluster = plan.cluster
        services.append(Service(cluster.launch(), lambda _pid: cluster.is_ready()))
    if plan.broker is not None:
        broker = plan.broker
        services.append(Service(broker.launch(), lambda _pid: broker.is_ready()))
    return services


def own_services(plan: Plan) -> list[Service]:
    """Second stage: our own processes. They need the migrated database."""
    settings = plan.settings
    since = database_time(settings.database_url)
    host, port = settings.api_host, settings.api_port
    services = [
        Service(
            module(plan, "api", "api.main"),
            lambda _pid: answers_http(host, port),
        )
    ]
    for ordinal in range(settings.schedulers):
        launch = module(plan, f"scheduler-{ordinal}", "scheduler.main")
        services.append(Service(launch, lambda _pid: has_leader(settings.database_url, since)))
    services.append(worker(plan, HOST_QUEUE, settings.pool.children))
    services.append(worker(plan, CHORE_QUEUE, CHORE_CHILDREN))
    services.append(worker(plan, PLAN_QUEUE, PLAN_CHILDREN))
    return services


def module(plan: Plan, name: str, *arguments: str) -> Launch:
    """A child that runs `python -m` of one of our mains."""
    return Launch(
        name=name,
        command=(sys.executable, "-m", *arguments),
        environ=plan.environ() | {"VENUS_PROCESS": name},
        cwd=TREE,
    )


def worker(plan: Plan, queue: str, children: int) -> Service:
    """A Celery worker of one queue. SIGTERM ends it cold: keepers are tasks that never end."""
    name = f"worker-{queue}"
    ready = plan.layout.home / f"{name}.ready"
    launch = module(
        plan, name, "celery", "-A", "workers.app", "worker", "-Q", queue, "-n", f"{queue}@%h",
        "-P", "prefork", "-c", str(children), "--without-gossip", "--without-mingle",
        "--loglevel", plan.settings.log_level,
    )  # fmt: skip
    environ = {**launch.environ, "REMAP_SIGTERM": "SIGQUIT", READY_VARIABLE: str(ready)}
    launch = replace(launch, environ=environ, stop_grace_s=WORKER_GRACE_S)
    return Service(launch, lambda pid: is_marked_ready(ready, pid))


def answers_http(host: str, port: int) -> bool:
    """Whether the API answers its health route with success."""
    request = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection((host, port), timeout=HTTP_TIMEOUT_S) as connection:
            connection.sendall(request.encode())
            status_line = connection.recv(64)
    except OSError:
        return False
    return b" 200 " in status_line


def database_time(url: str) -> datetime:
    """The database's clock; leadership older than it is a former run's."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now


def forget_former_run(url: str) -> None:
    """End leases and leadership that a former run of this home left behind.

    Only for the embedded database, whose every client was a child of the former supervisor and
    died with it; the lock of the home says that there is no other supervisor. Without it a second
    start waits for their time limits.
    """
    with psycopg.connect(url) as connection:
        connection.execute(
            "UPDATE host_lease SET lease_until = clock_timestamp() - interval '1 second'"
            " WHERE owner IS NOT NULL AND lease_until > clock_timestamp()"
        )
        connection.execute("UPDATE leadership SET address = ''")


def has_leader(url: str, since: datetime) -> bool:
    """Whether somebody has led since then: a standby counts as ready once there is a leader."""
    query = "SELECT 1 FROM leadership WHERE heartbeat_at >= %s"
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            return connection.execute(query, (since,)).fetchone() is not None
    except psycopg.OperationalError:
        return False


def migration(plan: Plan) -> Launch:
    """Brings the database to the newest revision and ends."""
    return module(plan, "migrate", "migrations.upgrade")


def bootstrap(plan: Plan) -> Launch:
    """Prints the admin key, made once and kept in the home; ends."""
    return module(plan, "bootstrap", "api.bootstrap", "--print")


def environment_for_tools(plan: Plan) -> Mapping[str, str]:
    """The addresses alone, for a person's shell or a test."""
    names = ("VENUS_HOME", "DATABASE_URL", "BROKER_URL", "OBJECT_STORE_URL")
    environ = plan.environ()
    return {name: environ[name] for name in names}
