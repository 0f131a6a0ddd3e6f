"""What a spec is checked against, and what the check found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.problems import Finding
from infra.settings import Settings
from venusrl.models.checkpoints import BaseModelInfo


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a spec is checked against."""

    models: Mapping[str, BaseModelInfo]
    environments: Mapping[str, list[Any]]
    """Version rows by environment name, oldest first."""
    settings: Settings
    secrets: frozenset[str] = frozenset()
    """Names of the project's secrets."""
    model_refs: Sequence[str] = ()
    """Names and references of the project's models, for near names."""
    datasets: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Version rows of the project's datasets that the spec names, oldest first."""


@dataclass(slots=True)
class Outcome:
    """What validation found. `spec` is None when there is an error."""

    findings: list[Finding] = field(default_factory=list)
    resolved: list[tuple[str, Any, str]] = field(default_factory=list)
    spec: dict[str, Any] | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    """Rows of environment versions by the pointer of the environment that uses them."""

    def error(self, pointer: str, code: str, message: str, hint: str = "") -> None:
        """Add an error."""
        self.findings.append(Finding(pointer, code, message, hint))

    def warn(self, pointer: str, code: str, message: str, hint: str = "") -> None:
        """Add a warning."""
        self.findings.append(Finding(pointer, code, message, hint, "warning"))

    @property
    def version(self) -> Any:
        """Row of the version of the job's first environment; None where it has none."""
        return self.versions.get("/environments/0")

    @property
    def is_valid(self) -> bool:
        """No finding is an error."""
        return all(one.severity != "error" for one in self.findings)
