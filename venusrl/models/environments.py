"""Environments and their immutable versions."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from venusrl.models._base import Answer, Wire
from venusrl.models.common import Finding, Id, Temperature


class Dependencies(Answer):
    """What `requirements.txt` was built into: read-only beside the package, shared by its hash."""

    key: str
    """Hash of the pins and the interpreter's tag."""
    packages: dict[str, str] = Field(default_factory=dict)
    bytes: int = 0


class EnvironmentVersion(Answer):
    """One immutable version; the same content is the same version."""

    id: str
    environment: str
    version: int
    ref: str
    content_sha: str
    state: str
    """uploading, building, validating, ready, failed or yanked. A version is made when its upload is
    whole: `uploading` is not seen of an upload in one request."""
    findings: list[Finding] = Field(default_factory=list)
    splits: dict[str, int] = Field(default_factory=dict)
    dependencies: Dependencies | None = None
    draft: bool = False
    """Whether it waits for its publication: no job gets it without naming its number."""
    yanked_at: datetime | None = None
    yank_reason: str | None = None
    created_at: datetime


class EnvironmentCreate(Wire):
    """Body of POST /v1/environments; an upload creates the environment too."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]


class Yank(Wire):
    """Body of a yank."""

    reason: Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    """Shown to whoever names the version in a new job."""


class EnvironmentTest(Wire):
    """Body of a test run: the package's cases of a split, or tasks played by a checkpoint."""

    split: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")] = "test"
    tasks: Annotated[int, Field(ge=1, le=64)] = 8
    """Cases or tasks that are played, the first ones of the split."""
    checkpoint: Id | None = None
    """Plays the split's tasks; without one the package's cases say what is answered."""
    temperature: Temperature = 1.0
    max_tokens: Annotated[int, Field(ge=1, le=512)] = 128
    """Of one turn."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    config: dict[str, Any] = Field(default_factory=dict)
    """Laid over the package's own, as a job's."""


class PlayedCase(Answer):
    """One rollout of a test run."""

    name: str
    task: str
    split: str
    end: str | None = None
    """How it ended; null when the environment failed."""
    turns: int = 0
    verdict: str
    """passed, failed, unscorable or error. A case passes when it goes as it says, a checkpoint's
    rollout when it is scored."""
    reward: float | None = None
    components: dict[str, float | str] = Field(default_factory=dict)
    """Values by component; text is why one is unscorable."""
    metrics: dict[str, float] = Field(default_factory=dict)
    findings: list[Finding] = Field(default_factory=list)
    seconds: float = 0.0


class EnvironmentTestReport(Answer):
    """Result of a `test_environment` operation."""

    passed: bool
    split: str
    played: int
    mean_reward: float | None = None
    cases: list[PlayedCase] = Field(default_factory=list)
    findings: list[Finding] = Field(default_factory=list)
    log: str = ""
    """The end of what the environment printed."""


class Environment(Answer):
    """A named environment of a project."""

    id: str
    name: str
    latest_version: int
    created_at: datetime
