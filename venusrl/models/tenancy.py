"""Organizations, projects, API keys."""

import re
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BeforeValidator, Field

from venusrl.models._base import NAME, Answer, Wire
from venusrl.models.common import Id

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=NAME)]
Role = Literal["viewer", "developer", "admin", "owner"]

_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]")


def _is_said_as_a_date(value: Any) -> Any:
    """Refuse seconds since 1970, as a number or as text."""
    if isinstance(value, datetime) or (isinstance(value, str) and _DATE.match(value)):
        return value
    raise ValueError("say a date and time with its zone: 2027-01-01T00:00:00Z")


Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_is_said_as_a_date)]
"""JSON has no times: text of RFC 3339."""


class OrganizationCreate(Wire):
    """Body of POST /v1/organizations."""

    name: Name


class Organization(Answer):
    """The paying isolation boundary."""

    id: str
    name: str
    created_at: datetime


class ProjectCreate(Wire):
    """Body of POST /v1/projects; the bootstrap key names the organization."""

    name: Name
    organization_id: Id | None = None


class Project(Answer):
    """A folder of an organization that owns jobs, environments and keys."""

    id: str
    organization_id: str
    name: str
    created_at: datetime


class KeyCreate(Wire):
    """Body of POST /v1/api-keys.

    A key of a project works inside it. Without a project it is a key of the organization: its role is
    admin or owner, and it creates projects and keys.
    """

    name: Name
    project_id: Id | None = None
    organization_id: Id | None = None
    role: Role = "developer"
    expires_at: Moment | None = None
    """Not in the past."""


class KeyRotate(Wire):
    """Body of POST /v1/api-keys/{id}/rotate: how long the old key goes on working."""

    grace_s: Annotated[int, Field(ge=0, le=7 * 86_400)] = 0


class Key(Answer):
    """A key without its secret."""

    id: str
    organization_id: str | None
    project_id: str | None
    name: str
    role: str
    prefix: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    created_at: datetime


class KeyCreated(Key):
    """The answer of a creation: the only time that the secret is shown."""

    secret: str
