"""Verbs of environments. The gateway parses packages; their code runs in a chore's sandbox only."""

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.operations.service import operation_of
from api.problems import Finding, conflict, invalid, not_found
from environments.package import unpack
from infra.names import TEST_ENVIRONMENT, VALIDATE_ENVIRONMENT, package_path
from stores import checkpoints, environments
from stores.blobs import Blob, sha256
from stores.environments import NewVersion, Owner
from stores.unit_of_work import AsyncConnection
from venusrl.env.host.manifest import Manifest, PackageInvalid, read_manifest
from venusrl.env.host.requirements import read_requirements
from venusrl.models.environments import Environment, EnvironmentTest, EnvironmentVersion

YANKED: Final = "yanked"
"""State of a version whatever its validation said, until it is published again."""

VERSION: Final = "environment_version_id"
"""Where the requests of operations say which version is meant."""


class Ref(NamedTuple):
    """One version as an address names it."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Package:
    """A well-formed package that lies in the object store."""

    name: str
    content_sha: str
    blob: Blob
    manifest: Manifest
    has_requirements: bool = False


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
        state=row.state if row.yanked_at is None else YANKED,
        findings=row.findings,
        splits=row.splits,
        dependencies=row.dependencies,
        draft=row.is_draft,
        yanked_at=row.yanked_at,
        yank_reason=row.yank_reason,
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
        content_sha, manifest, has_requirements = await asyncio.to_thread(_unpack, data)
    except PackageInvalid as error:
        findings = [
            Finding(f"/{one.file}{one.pointer}", one.code, one.message, one.hint)
            for one in error.findings
        ]
        raise invalid(findings, "The package cannot be used.") from error
    if manifest.name != name:
        message = f"The manifest's name is {manifest.name!r}, the address says {name!r}."
        raise invalid([Finding("/venus.toml/name", "name_mismatch", message)])
    blob = await gateway.blobs.create(package_path(f"{content_sha}-{_short(data)}"), data)
    return Package(name, content_sha, blob, manifest, has_requirements)


def _short(data: bytes) -> str:
    """Two archives of one tree may differ in compression; each is stored under its own name."""
    return sha256(data)[:16]


def _unpack(data: bytes) -> tuple[str, Manifest, bool]:
    with tempfile.TemporaryDirectory(prefix="venus-package-") as folder:
        target = Path(folder) / "package"
        digest = unpack(data, target)
        return digest, read_manifest(target), bool(read_requirements(target).pins)


async def add_version(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    package: Package,
    is_draft: bool = False,
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
        state=_first_state(package.has_requirements),
        is_draft=is_draft,
    )
    version = await environments.add_version(connection, owner, row.id, new)
    if version.id == new.id:
        await _start(connection, gateway, caller, VALIDATE_ENVIRONMENT, {VERSION: version.id})
    return version_of(package.name, version).model_dump(mode="json")


def _first_state(has_requirements: bool) -> str:
    return "building" if has_requirements else "validating"


async def _start(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    kind: str,
    request: Mapping[str, Any],
) -> Any:
    id = gateway.ids.new("op")
    return await checkpoints.start_operation(connection, caller.project_id, id, kind, request)


async def locked(connection: AsyncConnection, caller: ProjectCaller, ref: Ref) -> Any:
    """A version's row, locked. Raises 404."""
    row = await environments.find_any_version(
        connection, caller.project_id, ref.name, ref.number, lock=True
    )
    if row is None:
        raise not_found("environment version", f"{ref.name}@{ref.number}")
    return row


async def yank(
    connection: AsyncConnection, caller: ProjectCaller, ref: Ref, reason: str
) -> dict[str, Any]:
    """Refuse the version to new jobs; those that use it go on. Again, with another reason: said anew."""
    row = await locked(connection, caller, ref)
    changed = await environments.yank(connection, row.id, reason)
    return version_of(ref.name, changed).model_dump(mode="json")


async def publish(connection: AsyncConnection, caller: ProjectCaller, ref: Ref) -> dict[str, Any]:
    """End a draft or a yank. Raises 409 for a version that failed."""
    row = await locked(connection, caller, ref)
    if row.state == "failed":
        raise conflict("The version failed its validation; its findings say why.")
    changed = await environments.change_version(
        connection, row.id, is_draft=False, yanked_at=None, yank_reason=None
    )
    return version_of(ref.name, changed).model_dump(mode="json")


async def validate_again(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, ref: Ref
) -> dict[str, Any]:
    """Start a validation, or find the one that goes on.

    A ready version stays ready until the outcome; a failed one is in validation again.
    """
    row = await locked(connection, caller, ref)
    operation = await environments.open_operation(connection, row.id, VALIDATE_ENVIRONMENT)
    if operation is None:
        request = {VERSION: row.id, "again": True}
        operation = await _start(connection, gateway, caller, VALIDATE_ENVIRONMENT, request)
        if row.state == "failed":
            await environments.change_version(connection, row.id, state="building", findings=[])
    return operation_of(operation).model_dump(mode="json")


async def test(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[Ref, EnvironmentTest],
) -> dict[str, Any]:
    """Start a test run of a version in any state; the version does not change."""
    ref, body = asked
    row = await locked(connection, caller, ref)
    if body.checkpoint is not None:
        found = await checkpoints.find(connection, caller.project_id, body.checkpoint)
        if found is None:
            raise not_found("checkpoint", body.checkpoint)
        if found.state != "ready":
            raise conflict(f"The checkpoint is {found.state}.", "checkpoint_not_ready")
    request = {VERSION: row.id, **body.model_dump(mode="json")}
    operation = await _start(connection, gateway, caller, TEST_ENVIRONMENT, request)
    return operation_of(operation).model_dump(mode="json")


async def delete(connection: AsyncConnection, caller: ProjectCaller, name: str) -> None:
    """Delete an environment that no live job plays. Raises 404, or 409 with the job."""
    row = await environments.find(connection, caller.project_id, name, lock=True)
    if row is None:
        known = await environments.names(connection, caller.project_id)
        raise not_found("environment", name, known)
    job = await environments.job_using(connection, row.id)
    if job is not None:
        raise conflict(f"The job {job} plays this environment and has not ended.", "in_use")
    await environments.delete(connection, row.id)
