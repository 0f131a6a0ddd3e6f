"""What every route gets: settings, database, object store; one record, made at start."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.audit.database import AuditedDatabase
from infra.ids import IdSource
from infra.settings import Settings
from stores.blobs import Blobs


@dataclass(frozen=True, slots=True)
class Gateway:
    """The gateway's ports."""

    settings: Settings
    database: AuditedDatabase
    blobs: Blobs
    ids: IdSource


def gateway_of(request: Request) -> Gateway:
    """Dependency of all routes."""
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayDep = Annotated[Gateway, Depends(gateway_of)]
"""Parameter type of routes."""
