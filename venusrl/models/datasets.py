"""Datasets, their immutable versions, and a look at their rows."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from venusrl.models._base import Answer, Wire
from venusrl.models.common import Finding


class DatasetCreate(Wire):
    """Body of POST /v1/datasets; an upload creates the dataset too."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]


class Dataset(Answer):
    """A named dataset of a project."""

    id: str
    name: str
    latest_version: int
    created_at: datetime


class Split(Answer):
    """One split of a version; `rows` is known once validation has ended."""

    size: int
    sha256: str
    rows: int | None = None


class DatasetVersion(Answer):
    """One immutable version; the same content is the same version.

    `unlisted` counts findings beyond those listed, by code.
    """

    id: str
    dataset: str
    version: int
    ref: str
    content_sha: str
    state: str
    findings: list[Finding] = Field(default_factory=list)
    unlisted: dict[str, int] = Field(default_factory=dict)
    splits: dict[str, Split] = Field(default_factory=dict)
    created_at: datetime


class PreviewRow(Answer):
    """One line: the row, or the start of a line that is none."""

    line: int
    row: dict[str, Any] | None = None
    text: str | None = None


class Preview(Answer):
    """The first rows of a split; `is_cut` when there are more."""

    split: str
    rows: list[PreviewRow]
    is_cut: bool
