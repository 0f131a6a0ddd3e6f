"""Accounts of a project: who did what, and what was held for how long."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Literal

from venusrl._lists import iterate
from venusrl._transport import Transport
from venusrl.models.audit import AuditEvent
from venusrl.models.usage import BucketSize, GroupBy, UsageLine

AUDIT = "/v1/audit-events"
USAGE = "/v1/usage"


class AsyncAudit:
    """`client.audit`; needs a key with the role admin."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        outcome: Literal["done", "refused"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[AuditEvent]:
        """Calls that changed something or were refused; `target` is what one named or made."""
        params = {
            "actor": actor,
            "action": action,
            "target": target,
            "outcome": outcome,
            "since": _text(since),
            "until": _text(until),
            "order": "desc" if newest_first else "asc",
        }
        return iterate(self._transport, AUDIT, params, AuditEvent)


class AsyncUsage:
    """`client.usage`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self,
        *,
        group_by: GroupBy = "job",
        bucket: BucketSize = "day",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[UsageLine]:
        """Seconds of engines, trainers and sandboxes by bucket of time; the last 30 days or day."""
        params = {
            "group_by": group_by,
            "bucket": bucket,
            "since": _text(since),
            "until": _text(until),
        }
        return iterate(self._transport, USAGE, params, UsageLine)


def _text(at: datetime | None) -> str | None:
    """As the API reads times; one without a zone is of this machine's."""
    return None if at is None else at.astimezone().isoformat()
