"""Environments and their immutable versions."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from venusrl.models._base import Answer, Wire
from venusrl.models.common import Finding


class EnvironmentVersion(Answer):
    """One immutable version; the same content is the same version."""

    id: str
    environment: str
    version: int
    ref: str
    content_sha: str
    state: str
    findings: list[Finding] = Field(default_factory=list)
    splits: dict[str, int] = Field(default_factory=dict)
    created_at: datetime


class EnvironmentCreate(Wire):
    """Body of POST /v1/environments; an upload creates the environment too."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]


class Environment(Answer):
    """A named environment of a project."""

    id: str
    name: str
    latest_version: int
    created_at: datetime
