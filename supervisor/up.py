"""`venus up`: everything on this machine, in the foreground, until SIGINT or SIGTERM.

Order: lock, Postgres and Valkey, migrations, then api, scheduler and workers together with the
admin key. `up.json` in the home (and `--ready-file`) names address, key and pids once all of it is
ready, is renewed at every restart of a child, and goes away at the end.
"""

import argparse
import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psycopg

from infra.settings import BadSettingError, Settings
from infra.vault import make_key_file
from migrations.upgrade import is_current
from supervisor import services
from supervisor.account import NoAccountError
from supervisor.layout import Layout, UnsafeFolderError
from supervisor.postgres import ClusterVersionError, PostgresFailedError, PostgresMissingError
from supervisor.probes import NoSandboxError
from supervisor.processes import StartError, Supervisor, run_to_end, say
from supervisor.valkey import ValkeyMissingError

STATE_FILE: Final = "up.json"

KEY_PREFIX: Final = "vrl_"

EXIT_FAILED: Final = 1
EXIT_LOCKED: Final = 3


class AlreadyUpError(RuntimeError):
    """Another supervisor holds this home."""


EXPECTED_FAILURES: Final = (
    ClusterVersionError,
    NoAccountError,
    NoSandboxError,
    PostgresFailedError,
    PostgresMissingError,
    StartError,
    UnsafeFolderError,
    ValkeyMissingError,
    psycopg.OperationalError,
)
"""Failures whose message tells the person at the terminal what to do; no traceback for these."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line decides."""

    home: Path | None = None
    port: int | None = None
    ready_file: Path | None = None
    as_json: bool = False
    """Say on standard output when all is up as one JSON record, for a program that waits for it."""


def run(options: Options) -> int:
    """Run until stopped; the exit status. Called by the command line with nothing else running."""
    try:
        settings = Settings.from_env()
    except BadSettingError as error:
        say(f"could not start: {error}")
        return EXIT_FAILED
    if options.home is not None:
        home = options.home.absolute()
        is_default = settings.object_store_url == (settings.home / "objects").as_uri()
        url = (home / "objects").as_uri() if is_default else settings.object_store_url
        settings = replace(settings, home=home, object_store_url=url)
    if options.port is not None:
        settings = replace(settings, api_port=options.port)
    try:
        layout = Layout(settings.home).make()
        with holding_lock(layout):
            asyncio.run(_up(settings, State(layout, options.ready_file, options.as_json)))
    except AlreadyUpError as error:
        say(str(error))
        return EXIT_LOCKED
    except EXPECTED_FAILURES as error:
        say(f"could not start: {error}")
        say("`venus doctor` lists what is missing on this machine")
        return EXIT_FAILED
    return 0


@contextmanager
def holding_lock(layout: Layout) -> Iterator[None]:
    """One supervisor per home. The lock goes with the process, however it ends."""
    descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 32).decode().strip()
            raise AlreadyUpError(
                f"already running in {layout.home} (pid {pid}); stop it with `kill {pid}`"
            ) from None
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


async def _up(settings: Settings, state: "State") -> None:
    """Run `_serve` until a stop signal or a failure, then stop everything in reverse."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopped.set)
    layout = state.layout
    supervisor = Supervisor(layout.logs, state.refresh)
    state.supervisor = supervisor
    serving = asyncio.create_task(_serve(settings, layout, supervisor, state))
    waiting = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
    finally:
        state.remove()
        for task in (serving, waiting):
            task.cancel()
        with suppress(asyncio.CancelledError, *EXPECTED_FAILURES):
            await serving
        say("stopping")
        await supervisor.stop()
    say("stopped")


async def _serve(
    settings: Settings, layout: Layout, supervisor: Supervisor, state: "State"
) -> None:
    plan = services.make_plan(settings)
    if not settings.secret_keys:
        make_key_file(settings.home)
    if plan.cluster is not None:
        plan.cluster.initialise()
    if plan.broker is not None:
        plan.broker.initialise()
    await supervisor.start(services.embedded_services(plan))
    if plan.cluster is not None:
        plan.cluster.create_database()
    if not is_current(plan.settings.database_url):
        say("migrating the database")
        await run_to_end(services.migration(plan), layout.logs / "migrate.log")
    if plan.cluster is not None:
        services.forget_former_run(plan.settings.database_url)
    starting = asyncio.create_task(supervisor.start(services.own_services(plan)))
    try:
        key = await _admin_key(plan)
        await starting
    finally:
        starting.cancel()
    state.announce(plan, key)
    await supervisor.watch()


async def _admin_key(plan: services.Plan) -> str:
    """The bootstrap key, printed by the API's own command as its last line."""
    output = plan.layout.home / "bootstrap.out"
    output.unlink(missing_ok=True)
    output.touch(mode=0o600)
    try:
        await run_to_end(services.bootstrap(plan), output)
        words = output.read_text().split()
    finally:
        output.unlink(missing_ok=True)
    keys = [word for word in words if word.startswith(KEY_PREFIX)]
    if not keys:
        raise StartError("the API's bootstrap command printed no key")
    return keys[-1]


class State:
    """The file that says where this installation is and who is running; there once all is ready."""

    def __init__(self, layout: Layout, ready_file: Path | None, as_json: bool = False) -> None:
        self.layout = layout
        self._as_json = as_json
        self._files = [layout.home / STATE_FILE, *([ready_file.absolute()] if ready_file else [])]
        self._record: dict[str, object] = {}
        self.supervisor: Supervisor | None = None
        self.remove()

    def announce(self, plan: services.Plan, key: str) -> None:
        """Write the files, and tell the person at the terminal."""
        address = f"http://{plan.settings.api_host}:{plan.settings.api_port}"
        self._record = {
            "api": address,
            "admin_key": key,
            "home": str(plan.settings.home),
            "logs": str(plan.layout.logs),
            "environ": dict(services.environment_for_tools(plan)),
        }
        self.refresh()
        if self._as_json:
            sys.stdout.write(json.dumps(self._ready(plan, address)) + "\n")
            sys.stdout.flush()
            return
        # To a person only: a file that takes this output is a log, which people pass on.
        shown = key if sys.stdout.isatty() else f"in {plan.layout.admin_key}"
        sys.stdout.write(
            f"VenusRL is up at {address}\n"
            f"admin key: {shown}\n"
            f"home: {plan.settings.home}  logs: {plan.layout.logs}\n"
            f"stop with Ctrl-C or `kill {os.getpid()}`\n"
        )
        sys.stdout.flush()

    def _ready(self, plan: services.Plan, address: str) -> dict[str, object]:
        """What a program that started the platform needs; the key itself stays in its file."""
        assert self.supervisor is not None, "only what runs is announced"
        return {
            "event": "ready",
            "url": address,
            "key_file": str(plan.layout.admin_key),
            "home": str(plan.settings.home),
            "logs": str(plan.layout.logs),
            "pids": {"supervisor": os.getpid(), **self.supervisor.pids},
        }

    def refresh(self) -> None:
        """Write the files again when a child has come back under another pid."""
        if not self._record or self.supervisor is None:
            return
        pids = {"supervisor": os.getpid(), **self.supervisor.pids}
        text = json.dumps(self._record | {"pids": pids}, indent=1)
        for file in self._files:
            waiting = file.with_name(file.name + ".new")
            waiting.unlink(missing_ok=True)
            descriptor = os.open(waiting, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(text)
            os.replace(waiting, file)

    def remove(self) -> None:
        """Take the files away: nothing is up."""
        self._record = {}
        for file in self._files:
            file.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command-line entry."""
    parser = argparse.ArgumentParser(prog="venus up", description="start everything here")
    parser.add_argument("--home", type=Path, help="folder of this installation (VENUS_HOME)")
    parser.add_argument("--port", type=int, help="port of the API (VENUS_API_PORT); 0: any")
    parser.add_argument("--ready-file", type=Path, help="written once everything is ready")
    parser.add_argument("--json", action="store_true", help="say so as one JSON record")
    given = parser.parse_args(arguments)
    return run(Options(given.home, given.port, given.ready_file, given.json))


if __name__ == "__main__":
    sys.exit(main())
