"""Route of audit events."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime

from api.auth.caller import CallerDep
from api.gateway import GatewayDep
from api.paging import Wanted, to_page
from stores import audit
from venusrl.models.audit import AuditEvent
from venusrl.models.common import Page

router = APIRouter(prefix="/v1/audit-events", tags=["audit"])

Filter = Annotated[str | None, Query(max_length=200)]


def filters(
    actor: Filter = None,
    action: Filter = None,
    target: Filter = None,
    outcome: Annotated[str | None, Query(pattern="^(done|refused)$")] = None,
    since: Annotated[AwareDatetime | None, Query()] = None,
    until: Annotated[AwareDatetime | None, Query()] = None,
) -> audit.Wanted:
    """Dependency: which events are wanted."""
    return audit.Wanted(actor, action, target, outcome, since, until)


@router.get("")
async def list_audit_events(
    caller: CallerDep,
    wanted: Annotated[audit.Wanted, Depends(filters)],
    page: Wanted,
    gateway: GatewayDep,
) -> Page[AuditEvent]:
    """Calls that changed something or were refused, of the key's project or organization.

    Needs the role admin. `target` matches what a call named and what it made.
    """
    caller.may("admin")
    scope = (caller.organization_id, caller.project_id)
    async with gateway.database.begin() as connection:
        found = await audit.page(connection, *scope, wanted, page)
    return to_page(found, lambda row: AuditEvent.model_validate(row, from_attributes=True))
