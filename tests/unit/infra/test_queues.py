"""Which queue an operation's wake-up goes to."""

import pytest

from infra import names
from infra.broker import make_app


@pytest.mark.parametrize(
    ("kind", "queue"),
    [
        (names.PLAN, names.PLAN_QUEUE),
        (names.VALIDATE_ENVIRONMENT, names.CHORE_QUEUE),
        (names.PREPARE_JOB, names.CHORE_QUEUE),
    ],
)
def test_plans_have_a_queue_of_their_own(kind: str, queue: str) -> None:
    router = make_app("memory://").amqp.router
    assert router.route({}, names.chore_task(kind))["queue"].name == queue
