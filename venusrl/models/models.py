"""Models: what a job can start from."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from venusrl.models._base import Answer, Wire
from venusrl.models.checkpoints import File
from venusrl.models.common import Finding, Id

ModelName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9._-]{0,62}$")]


class FromCheckpoint(Wire):
    """A checkpoint of the organization; the model keeps files of its own."""

    type: Literal["checkpoint"]
    checkpoint: Id


class FromHub(Wire):
    """A hub repository at a revision: a branch, a tag or a commit."""

    type: Literal["hub"]
    repo: Annotated[
        str,
        Field(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*/"
              r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"),
    ]  # fmt: skip
    revision: Annotated[
        str, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$")
    ] = "main"


class ModelCreate(Wire):
    """Body of POST /v1/models, but for uploads."""

    name: ModelName
    source: Annotated[FromCheckpoint | FromHub, Field(discriminator="type")]


class ModelInfo(Answer):
    """A model. `ref` is what a job's `model.base` says."""

    name: str
    ref: str
    id: str | None = None
    state: str = "ready"
    source: dict[str, Any] = Field(default_factory=dict)
    findings: list[Finding] = Field(default_factory=list)
    context_tokens: int | None = None
    parameters: int | None = None
    trainable: bool = True
    files: list[File] = Field(default_factory=list)
    created_at: datetime | None = None
