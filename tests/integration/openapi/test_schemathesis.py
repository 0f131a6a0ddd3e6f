"""Every operation of the document under generated requests: no crash, nothing that it does not say.

Half of the requests that name an object name one that exists, so that more than 404 is reached.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CheckFunction
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks as openapi_checks

from api.app import create_app
from domain.states import TERMINAL
from tests.support import requires
from tests.support.specs import small_job
from tests.support.stack import Stack, StackPlan, running_stack
from venusrl.client import Conflict

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    requires("postgres", "valkey", "bwrap"),
]

CASES_MIN: Final = 2_000
"""Over all operations."""

EXAMPLES: Final = 45
"""Generated for one operation; those without a parameter give fewer."""

ENDED_WITHIN_S: Final = 150.0

WAITING: Final = ("/generate", "/{checkpoint_id}/export", "/operations/{operation_id}")
"""Operations that hold their answer; here none is waited for."""

LIFETIME_S: Final = 3600.125
"""Of the one sandbox that all requests may name."""

STARTING: Final = "/v1/sandboxes"
"""Waits for starts unless it is told not to."""

LASTING: Final = (
    "DELETE /v1/jobs/{job_id}",
    "DELETE /v1/checkpoints/{checkpoint_id}",
    "DELETE /v1/sandboxes/{sandbox_id}",
    "POST /v1/sandboxes/{sandbox_id}/timeout",
)
"""Operations that never name what the others need."""

UNSUPPORTED: Final = ("/{sandbox_id}/fork", "/{sandbox_id}/snapshot")
"""Operations that answer 501, with the reason: the first check would call that a crash."""

CHECKS: Final[tuple[CheckFunction, ...]] = (
    schemathesis.checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
)


@schemathesis.serializer("application/gzip", "application/x-gzip", "application/x-tar")
def as_bytes(context: Any, value: Any) -> bytes:
    """A generated archive, which is none."""
    del context
    data = getattr(value, "data", value)
    return data if isinstance(data, bytes) else str(data).encode("utf-8", "replace")


@dataclass(slots=True)
class Target:
    """A platform, a key that may do everything in its project, and objects of it."""

    address: str
    key: str
    objects: Mapping[str, str]
    seen: Counter[str] = field(default_factory=Counter)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A running platform. It calls a webhook once: generated ones lead nowhere, again and again."""
    with running_stack(StackPlan(environ={"VENUS_WEBHOOK_TRIES": "1"})) as stack:
        yield stack


@pytest.fixture(autouse=True)
def idle(stack: Stack) -> Iterator[None]:
    """Cancel what a generated request made train: it would take both cores from all that follow."""
    yield
    ended = [state.value for state in TERMINAL]
    for (job_id,) in stack.query("select id from job where not state = any(%s)", ended):
        with suppress(Conflict):  # It may end meanwhile.
            stack.client.jobs.cancel(str(job_id))
    others = "select id from sandbox where state <> 'ended' and lifetime_s <> %s"
    for (sandbox_id,) in stack.query(others, LIFETIME_S):
        stack.client.sandboxes.kill(str(sandbox_id))


@pytest.fixture(scope="module")
def target(stack: Stack) -> Target:
    """An ended job with all that belongs to it, and a key beside the one that asks."""
    job = stack.client.jobs.create(small_job("diary", stop={"max_steps": 1}))
    stack.client.jobs.wait(job.id, ENDED_WITHIN_S)
    checkpoint = next(iter(stack.client.checkpoints.list(job.id)))
    project = next(iter(stack.admin.projects.list(next(iter(stack.admin.organizations.list())).id)))
    key = stack.admin.keys.create("fuzz", project.id, role="owner")
    spare = stack.admin.keys.create("spare", project.id)
    webhook = stack.client.webhooks.create("https://example.com/hook")
    operation = stack.query("select id from operation where state = 'done' limit 1")[0][0]
    return Target(
        stack.client.base_url,
        key.secret,
        {
            "job_id": job.id,
            "checkpoint_id": checkpoint.id,
            "group_id": next(iter(stack.client.groups.list(job.id))).id,
            "rollout_id": next(iter(stack.client.rollouts.list(job.id))).id,
            "key_id": spare.id,
            "operation_id": str(operation),
            "webhook_id": webhook.id,
            "sandbox_id": stack.client.sandboxes.create(lifetime_s=LIFETIME_S).id,
            "delivery_id": stack.client.webhooks.test(webhook.id).id,
            "name": "diary",
            "version": "1",
        },
    )


def operations() -> list[Any]:
    """All operations of the document that the code renders."""
    schema = schemathesis.openapi.from_dict(create_app().openapi())
    return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


@pytest.mark.parametrize("operation", operations(), ids=lambda one: one.label)
def test_an_operation_keeps_its_word(operation: Any, target: Target) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), is_known=st.booleans())
    def ask(case: Any, is_known: bool) -> None:
        if is_known and case.path_parameters and operation.label not in LASTING:
            known = {n: target.objects.get(n, v) for n, v in case.path_parameters.items()}
            case.path_parameters = known
        if operation.path.endswith(WAITING):
            case.query = {"wait": 0}
        if operation.label == f"POST {STARTING}":
            case.query = {"wait": 0.01}
        is_served = not operation.path.endswith(UNSUPPORTED)
        checks = [*CHECKS] if is_served else [*CHECKS[1:]]
        headers = {"Authorization": f"Bearer {target.key}"}
        case.call_and_validate(base_url=target.address, headers=headers, checks=checks, timeout=60)
        target.seen[operation.label] += 1

    ask()


def test_at_least_two_thousand_requests_were_made(target: Target) -> None:
    assert target.seen.total() >= CASES_MIN, target.seen


def test_the_platform_still_serves(target: Target) -> None:
    headers = {"Authorization": f"Bearer {target.key}"}
    assert httpx.get(f"{target.address}/healthz").status_code == 200
    assert httpx.get(f"{target.address}/v1/jobs", headers=headers).status_code == 200
