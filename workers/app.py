"""Entry point of Celery workers: `celery -A workers.app worker -Q hosts,chores,plans`.

Imports stay light: a slow pool child would be killed at start, and torch never enters a Celery
process. Pool children die with the worker's main process, and hosts with their pool child, so that
a killed worker leaves nobody behind who goes on renewing leases.
"""

import os
from typing import Final

from celery.signals import worker_process_init, worker_ready

from infra.broker import make_app
from infra.process import set_parent_death_signal
from infra.readiness import mark_ready
from infra.settings import Settings

app = make_app(Settings.from_env().broker_url)
app.conf.update(include=["workers.keeper", "workers.chores.tasks"])

_MAIN_PID: Final = os.getpid()
"""Pool children are forked after this import."""


@worker_ready.connect  # type: ignore[untyped-decorator]
def _tell_supervisor(**_: object) -> None:
    mark_ready()


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _die_with_main_process(**_: object) -> None:
    set_parent_death_signal()
    if os.getppid() != _MAIN_PID:
        os._exit(1)
