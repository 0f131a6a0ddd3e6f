"""Environments and their immutable versions."""

from datetime import datetime

from pydantic import Field

from venusrl.models._base import Answer
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


class Environment(Answer):
    """A named environment of a project."""

    id: str
    name: str
    latest_version: int
    created_at: datetime
