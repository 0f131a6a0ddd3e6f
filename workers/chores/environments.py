"""Makes an environment version usable: builds its requirements, then plays it in sandboxes only."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from domain.errors import PayloadUnreadable, SecretUnavailable
from environments.checks import check_package
from infra.codec import convert
from infra.logging import striking
from sandboxes.runtimes.process import ProcessRuntime
from stores.system import preparation as store
from stores.system import secrets as secret_store
from stores.system.operations import TakenOperation
from venusrl.env.host.checks import CheckReport
from venusrl.env.host.dependencies import PackageSource
from venusrl.env.host.manifest import PackageInvalid, read_manifest
from venusrl.env.host.requirements import pinned
from venusrl.env.redaction import Redactor
from workers.chores.case_sandboxes import CaseSandboxes
from workers.chores.handling import ChoreFailed, ChoreTools, finding_json, readable_package
from workers.dependencies import BuildRecord, Dependencies
from workers.secrets import opened


@dataclass(frozen=True, slots=True)
class ValidateRequest:
    """What the operation's row asks for."""

    environment_version_id: str
    again: bool = False
    """The version has had an outcome, which this one replaces."""


async def validate(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """Build and check, then write the version's state, findings and numbers of tasks."""
    try:
        request = convert(dict(operation.request), ValidateRequest)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    version_id = request.environment_version_id
    with tempfile.TemporaryDirectory(prefix="venus-validate-") as folder:
        target = await fetched(tools, version_id, Path(folder))
        try:
            record = await built(tools, target)
        except PackageInvalid as error:
            report, record = CheckReport(error.findings), None
        else:
            report = await _checked(tools, version_id, target)
    outcome = store.Validated(
        passed=report.passed,
        findings=tuple(finding_json(one) for one in report.findings),
        splits=dict(report.tasks),
        dependencies=None if record is None else record.for_people(),
        again=request.again,
    )
    async with tools.database.begin() as connection:
        await store.write_validation(connection, version_id, outcome)
    return {"passed": report.passed, "cases": report.cases, "tasks": dict(report.tasks)}


async def fetched(tools: ChoreTools, version_id: str, folder: Path) -> Path:
    """The unpacked package of a version, below `folder`. Raises ChoreFailed."""
    async with tools.database.begin() as connection:
        package = await store.package(connection, version_id)
    if package is None:
        raise ChoreFailed("not_found", "the environment version is gone")
    try:
        data = await tools.blobs.read(package.uri, package.sha)
    except PayloadUnreadable as error:
        raise ChoreFailed("payload_unreadable", str(error)) from error
    return readable_package(folder, data)


async def built(tools: ChoreTools, package: Path) -> BuildRecord | None:
    """The build that a package needs, made if need be. Raises PackageInvalid, ChoreFailed."""
    requirements = pinned(package)
    if not requirements.pins:
        return None
    settings = tools.settings
    source = PackageSource(settings.package_folder, settings.package_index)
    try:
        return await Dependencies(tools.blobs, settings.home).ensure(requirements, source)
    except PayloadUnreadable as error:
        raise ChoreFailed("payload_unreadable", str(error)) from error


async def built_folder(tools: ChoreTools, package: Path) -> Path | None:
    """That build, unpacked on this machine. Raises ChoreFailed."""
    try:
        return await Dependencies(tools.blobs, tools.settings.home).folder(package)
    except PayloadUnreadable as error:
        raise ChoreFailed("payload_unreadable", str(error)) from error


async def _checked(tools: ChoreTools, version_id: str, target: Path) -> CheckReport:
    async with tools.database.begin() as connection:
        await store.begin_validation(connection, version_id)
    dependencies = await built_folder(tools, target)
    secrets = await project_secrets(tools, version_id, target)
    runtime = ProcessRuntime(target.parent / "guest")
    try:
        with striking(Redactor(secrets.values()).text):
            sandboxes = CaseSandboxes(runtime, target)
            return await check_package(target, {}, sandboxes, dependencies, secrets)
    finally:
        await runtime.close()


async def project_secrets(tools: ChoreTools, version_id: str, package: Path) -> dict[str, str]:
    """No job says which secrets: those of the project that are named like the variables."""
    try:
        wanted = read_manifest(package).secrets
    except PackageInvalid:
        return {}
    if not wanted:
        return {}
    async with tools.database.begin() as connection:
        project_id = await secret_store.project_of_version(connection, version_id)
        if project_id is None:
            return {}
        known = await secret_store.sealed(connection, project_id, wanted)
    try:
        return await opened(tools.settings, tools.database, project_id, known)
    except SecretUnavailable as error:
        raise ChoreFailed("secret_unavailable", str(error)) from error
