"""Keepers: a Celery task claims a host lease, spawns the host process and watches it.

The task runs in a prefork pool child, acked early, for as long as the host lives. The child process
dies with the pool child (parent-death signal); the keeper renews the lease only while the host's
progress heartbeat is fresh, and frees it with a cause when the host ends.
"""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Final

import psycopg

from domain.ids import HostId
from infra import failpoints
from infra.host_process import Birth, Progress, Renewed, read_record, write_record
from infra.ids import IdSource
from infra.logging import configure, get_logger
from infra.names import HOST_TASK
from infra.process import dying_with_parent
from infra.proofs import fresh_nonce, key_sha
from infra.settings import Intervals, Settings
from stores import sessions
from stores.system import leases
from workers.app import app

HOST_MODULES: Final = {
    "engine": "workers.rollout.main",
    "trainer": "workers.trainer.main",
    "node": "workers.fleet.main",
}

STOP_GRACE_S: Final = 5.0
"""After SIGTERM a host may flush for this long; then it is killed."""

GUARD_SHARE: Final = 0.9
"""The host's own deadline is this share of the lease: it ends before anyone may take over."""

FAILPOINT_BEFORE_CLAIM: Final = "keeper.before_claim"
FAILPOINT_AFTER_CLAIM: Final = "keeper.after_claim"


@app.task(name=HOST_TASK, acks_late=False, ignore_result=True)  # type: ignore[untyped-decorator]
def host(host_id: str, epoch: int) -> None:
    """Be the keeper of this host at this epoch, if it is still wanted and unclaimed."""
    settings = Settings.from_env()
    configure("keeper", settings.log_level)
    failpoints.configure("keeper")
    Keeper(settings, host_id, epoch).run()


class Keeper:
    """One claim, one child process, one lease."""

    def __init__(self, settings: Settings, host_id: str, epoch: int) -> None:
        self._settings = settings
        self._host_id = host_id
        self._epoch = epoch
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{IdSource().ulid()}"
        self._log = get_logger().bind(host_id=host_id, epoch=epoch)
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._progress: queue.SimpleQueue[Progress | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Claim, spawn, watch, free. Returns when the lease is no longer ours."""
        failpoints.hit(FAILPOINT_BEFORE_CLAIM)
        key = fresh_nonce()
        started = time.monotonic()
        with suppress(psycopg.Error):
            claim = leases.claim(
                self._database(),
                self._host_id,
                self._epoch,
                owner=self._owner,
                key_sha=key_sha(key),
                ttl_s=self._intervals.lease_ttl_s,
            )
            if claim is not None:
                failpoints.hit(FAILPOINT_AFTER_CLAIM)
                self._keep(claim, key, started)
        if self._connection is not None:
            self._connection.close()

    @property
    def _intervals(self) -> Intervals:
        return self._settings.intervals

    def _database(self) -> "psycopg.Connection[tuple[object, ...]]":
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._settings.database_url,
                autocommit=True,
                connect_timeout=3,
                options=sessions.options(sessions.KEEPER_TIMEOUT_MS),
            )
        return self._connection

    def _deadline(self, claimed: float) -> float:
        return claimed + self._intervals.lease_ttl_s * GUARD_SHARE

    def _keep(self, claim: leases.Claim, key: bytes, started: float) -> None:
        child = subprocess.Popen(
            dying_with_parent((sys.executable, "-m", HOST_MODULES[claim.kind])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert child.stdin is not None
        threading.Thread(target=self._read_progress, args=(child,), daemon=True).start()
        self._log.info("host.spawned", kind=claim.kind, pid=child.pid)
        cause = "the host could not be born"
        with suppress(OSError):
            birth = Birth(
                HostId(self._host_id),
                self._epoch,
                claim.kind,
                key,
                claim.attempt_id,
                claim.job_id,
                self._deadline(started),
            )
            write_record(child.stdin, birth)
            cause = self._watch(child, started)
        self._end(child, graceful=cause == "down")
        self._log.info("host.ended", cause=cause, status=child.returncode)
        with suppress(psycopg.Error):
            leases.give_up(self._database(), self._host_id, self._epoch, self._owner, cause)

    def _watch(self, child: "subprocess.Popen[bytes]", started: float) -> str:
        """Renew until something ends; returns the cause."""
        deadline = self._deadline(started)
        progress, progress_at, renew_at = Progress("load"), started, started
        assert child.stdin is not None
        while True:
            with suppress(queue.Empty):
                latest = self._progress.get(timeout=0.1)
                if latest is None:
                    return progress.cause or _exit_cause(child)
                progress, progress_at = latest, time.monotonic()
            now = time.monotonic()
            if now >= deadline:
                return "the lease could not be renewed"
            if now - progress_at > self._bound(progress.mode):
                return f"no progress for {now - progress_at:.1f} s in mode {progress.mode}"
            if now < renew_at:
                continue
            renew_at = now + self._intervals.lease_renew_s
            desired, lost = self._renew()
            if lost or desired == "down":
                return "down" if desired == "down" else "the lease was taken away"
            if desired is not None:
                deadline = self._deadline(now)
                # Of a child that has just died its stream's end tells, with the cause.
                with suppress(OSError):
                    write_record(child.stdin, Renewed(deadline))

    def _renew(self) -> tuple[str | None, bool]:
        """(desired, lost). An unreachable database is neither: the deadline decides."""
        try:
            desired = leases.renew(
                self._database(),
                self._host_id,
                self._epoch,
                self._owner,
                self._intervals.lease_ttl_s,
            )
        except psycopg.Error as error:
            self._log.warning("lease.unreachable", cause=str(error))
            self._connection = None
            return None, False
        return desired, desired is None

    def _bound(self, mode: str) -> float:
        bounds = {
            "load": self._intervals.progress_load_s,
            "sync": self._intervals.progress_sync_s,
            "train": self._intervals.progress_sync_s,
        }
        return bounds.get(mode, self._intervals.progress_decode_s)

    def _read_progress(self, child: "subprocess.Popen[bytes]") -> None:
        assert child.stdout is not None
        with suppress(Exception):  # a torn record is the end of the stream
            while (progress := read_record(child.stdout, Progress)) is not None:
                self._progress.put(progress)
        self._progress.put(None)

    def _end(self, child: "subprocess.Popen[bytes]", graceful: bool) -> None:
        if graceful and child.poll() is None:
            child.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _exit_cause(child: "subprocess.Popen[bytes]") -> str:
    try:
        return f"the host exited with status {child.wait(STOP_GRACE_S)}"
    except subprocess.TimeoutExpired:
        return "the host closed its progress stream without ending"
