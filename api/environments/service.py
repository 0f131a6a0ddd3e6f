"""Verbs of environments. The gateway parses packages; their code runs in a chore's sandbox only."""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.problems import Finding, conflict, invalid
from environments.package import unpack
from infra.names import VALIDATE_ENVIRONMENT, package_path
from stores import checkpoints, environments
from stores.blobs import Blob, sha256
from stores.environments import NewVersion, Owner
from stores.unit_of_work import AsyncConnection
from venusrl.env.host.manifest import Manifest, PackageInvalid, read_manifest
from venusrl.models.environments import Environment, EnvironmentVersion


@dataclass(frozen=True, slots=True)
class Package:
    """A well-formed package that lies in the object store."""

    name: str
    content_sha: str
    blob: Blob
    manifest: Manifest


def environment_of(row: Any) -> Environment:
    """Wire form of an environment row."""
    return Environment.model_validate(row, from_attributes=True)


def version_of(name: str, row: Any) -> EnvironmentVersion:
    """Wire form of a version row."""
    return EnvironmentVersion(
        id=row.id,
        environment=name,
        version=row.version,
        ref=f"{name}@{row.version}",
        content_sha=row.content_sha,
        state=row.state,
        findings=row.findings,
        splits=row.splits,
        created_at=row.created_at,
    )


async def create(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, name: str
) -> dict[str, Any]:
    """Insert an environment without versions. Raises 409 when the project has the name."""
    owner, id = Owner(caller.organization_id, caller.project_id), gateway.ids.new("env")
    row = await environments.ensure(connection, owner, id, name)
    if row.id != id:
        raise conflict(f"The project has an environment {name!r} already.", "name_taken")
    return environment_of(row).model_dump(mode="json")


async def read_package(gateway: Gateway, name: str, data: bytes) -> Package:
    """Unpack within limits, read the manifest, store the archive. Raises 422 with findings."""
    try:
        content_sha, manifest = await asyncio.to_thread(_unpack, data)
    except PackageInvalid as error:
        findings = [
            Finding(f"/{one.file}{one.pointer}", "package_invalid", one.message, one.hint)
            for one in error.findings
        ]
        raise invalid(findings, "The package cannot be used.") from error
    if manifest.name != name:
        message = f"The manifest's name is {manifest.name!r}, the address says {name!r}."
        raise invalid([Finding("/venus.toml/name", "name_mismatch", message)])
    blob = await gateway.blobs.create(package_path(f"{content_sha}-{_short(data)}"), data)
    return Package(name, content_sha, blob, manifest)


def _short(data: bytes) -> str:
    """Two archives of one tree may differ in compression; each is stored under its own name."""
    return sha256(data)[:16]


def _unpack(data: bytes) -> tuple[str, Manifest]:
    with tempfile.TemporaryDirectory(prefix="venus-package-") as folder:
        target = Path(folder) / "package"
        digest = unpack(data, target)
        return digest, read_manifest(target)


async def add_version(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, package: Package
) -> dict[str, Any]:
    """Insert the version and the operation that validates it, or find the one of this content."""
    owner = Owner(caller.organization_id, caller.project_id)
    row = await environments.ensure(connection, owner, gateway.ids.new("env"), package.name)
    new = NewVersion(
        id=gateway.ids.new("ev"),
        content_sha=package.content_sha,
        package_uri=package.blob.uri,
        package_sha=package.blob.sha,
        manifest=msgspec.to_builtins(package.manifest),
    )
    version = await environments.add_version(connection, owner, row.id, new)
    if version.id == new.id:
        await checkpoints.start_operation(
            connection,
            caller.project_id,
            gateway.ids.new("op"),
            VALIDATE_ENVIRONMENT,
            {"environment_version_id": version.id},
        )
    return version_of(package.name, version).model_dump(mode="json")
