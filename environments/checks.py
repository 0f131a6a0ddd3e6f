"""Validation of an uploaded environment version: the kit's checks, always isolated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from environments.package import content_hash
from venusrl.env.host.checks import CheckReport, check_folder
from venusrl.env.host.episode import Sandboxes
from venusrl.env.host.manifest import Manifest, PackageInvalid
from venusrl.env.host.ports import EnvironmentProcess
from venusrl.env.host.process import start_environment
from venusrl.env.messages import Json


async def check_package(
    folder: Path,
    config: Mapping[str, Json],
    sandboxes: Sandboxes | None = None,
    dependencies: Path | None = None,
    secrets: Mapping[str, str] | None = None,
) -> CheckReport:
    """Validate an unpacked package under a config; without `sandboxes` cases that need one wait.

    `secrets` are values by variable; those that the package needs and does not get are a warning.
    """
    given = secrets or {}

    async def start(package: Path, manifest: Manifest) -> EnvironmentProcess:
        return await start_environment(
            package, manifest, config, dependencies=dependencies, secrets=given
        )

    try:
        content_hash(folder)
    except PackageInvalid as error:
        return CheckReport(error.findings)
    return await check_folder(folder, start, sandboxes, dependencies, given=frozenset(given))
