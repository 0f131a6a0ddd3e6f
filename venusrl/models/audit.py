"""Audit events: who did what."""

from datetime import datetime

from venusrl.models._base import Answer


class AuditEvent(Answer):
    """One call that changed something, or was refused; it never changes and holds no body.

    `action` is the address without its names: `jobs.create`, `jobs.pause`, `api-keys.rotate`.
    """

    id: str
    organization_id: str | None
    project_id: str | None
    actor: str
    """Id of the key, or `system`."""
    action: str
    target: str | None
    """The object that the address names, or that the call made."""
    part: str | None
    """What else the address names: a version, a delivery."""
    created: str | None
    """Id of the object that the call made."""
    address: str
    request_id: str
    outcome: str
    """`done` or `refused`."""
    code: str | None
    """Problem code of a refusal."""
    created_at: datetime
