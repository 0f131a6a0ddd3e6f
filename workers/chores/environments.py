"""Validates an environment version: its code starts, loads and plays its cases in sandboxes only."""

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
from venusrl.env.host.manifest import Finding, PackageInvalid, read_manifest
from venusrl.env.redaction import Redactor
from workers.chores.case_sandboxes import CaseSandboxes
from workers.chores.handling import ChoreFailed, ChoreTools, readable_package
from workers.secrets import opened


@dataclass(frozen=True, slots=True)
class ValidateRequest:
    """What the operation's row asks for."""

    environment_version_id: str


async def validate(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """Play the checks and write the version's state, findings and numbers of tasks."""
    try:
        request = convert(dict(operation.request), ValidateRequest)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    async with tools.database.begin() as connection:
        package = await store.package(connection, request.environment_version_id)
    if package is None:
        raise ChoreFailed("not_found", "the environment version is gone")
    try:
        data = await tools.blobs.read(package.uri, package.sha)
    except PayloadUnreadable as error:
        raise ChoreFailed("payload_unreadable", str(error)) from error
    with tempfile.TemporaryDirectory(prefix="venus-validate-") as folder:
        target = readable_package(Path(folder), data)
        secrets = await _secrets(tools, request.environment_version_id, target)
        runtime = ProcessRuntime(Path(folder) / "guest")
        try:
            with striking(Redactor(secrets.values()).text):
                sandboxes = CaseSandboxes(runtime, target)
                report = await check_package(target, {}, sandboxes, secrets)
        finally:
            await runtime.close()
    outcome = store.Validated(
        passed=report.passed,
        findings=tuple(_finding(one) for one in report.findings),
        splits=dict(report.tasks),
    )
    async with tools.database.begin() as connection:
        await store.write_validation(connection, request.environment_version_id, outcome)
    return {"passed": report.passed, "cases": report.cases, "tasks": dict(report.tasks)}


async def _secrets(tools: ChoreTools, version_id: str, package: Path) -> dict[str, str]:
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


def _finding(one: Finding) -> dict[str, str]:
    return {
        "pointer": f"/{one.file}{one.pointer}",
        "code": "package_invalid",
        "message": one.message,
        "hint": one.hint,
        "severity": one.severity,
    }
