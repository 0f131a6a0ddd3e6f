"""Plans: what a spec would take, and what a recorded job would have taken under other settings."""

from collections.abc import Mapping
from typing import Any, Final

from venusrl._checkpoints import HELD_S
from venusrl._errors import OperationFailed, WaitTimeout
from venusrl._lists import read
from venusrl._paths import one
from venusrl._spec import SpecSource, document_of
from venusrl._transport import Request, Transport
from venusrl.models.checkpoints import Operation
from venusrl.models.plans import Plan, PlanPool, PlanProfile, PlanResult

PLANS = "/v1/plans"

PLAN_WAIT_S: Final = 300.0
"""Two forecasts of a minute of CPU each, on a machine that also does other chores."""


class AsyncPlans:
    """`client.plans`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        spec: SpecSource,
        *,
        pool: Mapping[str, Any] | PlanPool | None = None,
        profile: Mapping[str, Any] | PlanProfile | None = None,
        steps: int | None = None,
        replicas: int | None = None,
        seed: int = 0,
    ) -> Plan:
        """Ask for a forecast of a spec on a pool; `wait` has the answer. Raises Invalid."""
        asked = {"spec": document_of(spec), "profile": _plain(profile)}
        return await self._create({**asked, **_common(pool, steps, replicas, seed)})

    async def whatif(
        self,
        job_id: str,
        changes: Mapping[str, Any] | None = None,
        *,
        pool: Mapping[str, Any] | PlanPool | None = None,
        steps: int | None = None,
        replicas: int | None = None,
        seed: int = 0,
    ) -> Plan:
        """Ask for a recorded job under other settings: part of a spec, or other machines.

        Raises Invalid for what the simulator cannot change, Conflict for a job without a step.
        """
        asked = {"job": one(job_id), "changes": dict(changes or {})}
        return await self._create({**asked, **_common(pool, steps, replicas, seed)})

    async def get(self, plan_id: str, *, wait_s: float | None = None) -> Plan:
        """One plan; with `wait_s` the API holds its answer until it has ended, HELD_S at most."""
        wait = None if wait_s is None else min(max(0.0, wait_s), HELD_S)
        request = Request("GET", f"{PLANS}/{one(plan_id)}", {"wait": wait})
        return await read(self._transport, request, Plan)

    async def wait(self, plan: Plan, *, timeout_s: float = PLAN_WAIT_S) -> PlanResult:
        """Its answer. Raises OperationFailed or WaitTimeout."""
        async for _ in self._transport.polls(timeout_s):
            if plan.result is not None:
                return plan.result
            if plan.state == "failed":
                raise OperationFailed(_operation(plan))
            plan = await self.get(plan.id)
        raise WaitTimeout(f"plan {plan.id} is still {plan.state}")

    async def _create(self, body: Mapping[str, Any]) -> Plan:
        given = {name: value for name, value in body.items() if value is not None}
        return await read(self._transport, Request("POST", PLANS, body=given), Plan)


def _common(
    pool: Mapping[str, Any] | PlanPool | None,
    steps: int | None,
    replicas: int | None,
    seed: int,
) -> dict[str, Any]:
    return {"pool": _plain(pool), "steps": steps, "replicas": replicas, "seed": seed}


def _plain(record: Mapping[str, Any] | PlanPool | PlanProfile | None) -> dict[str, Any] | None:
    if record is None or isinstance(record, Mapping):
        return None if record is None else dict(record)
    return record.model_dump(mode="json")


def _operation(plan: Plan) -> Operation:
    return Operation(
        id=plan.id, kind="plan", state=plan.state, error=plan.error, created_at=plan.created_at
    )
