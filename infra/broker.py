"""The Celery application that both sides build: the scheduler to send by name, workers to run.

Celery only wakes keepers and runs short chores; Postgres is the truth.
"""

from typing import Final

from celery import Celery

from infra.names import CHORE_QUEUE, HOST_QUEUE, HOST_TASK, PLAN_QUEUE, PLAN_TASK

VISIBILITY_TIMEOUT_S: Final = 3600
"""Chores end long before it; host tasks are acked early, so that redelivery never concerns them."""


def make_app(broker_url: str) -> Celery:
    """An application on this broker, without tasks of its own."""
    app = Celery("venus", broker=broker_url)
    app.conf.update(
        task_default_queue=CHORE_QUEUE,
        task_routes={HOST_TASK: {"queue": HOST_QUEUE}, PLAN_TASK: {"queue": PLAN_QUEUE}},
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "socket_timeout": 5,
            "socket_connect_timeout": 3,
        },
        worker_hijack_root_logger=False,
    )
    return app
