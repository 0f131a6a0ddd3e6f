"""Validates an environment version: its code starts, loads and plays its cases in sandboxes only."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from domain.errors import PayloadUnreadable
from environments.checks import check_package
from infra.codec import convert
from sandboxes.runtimes.process import ProcessRuntime
from stores.system import preparation as store
from stores.system.operations import TakenOperation
from venusrl.env.host.manifest import Finding
from workers.chores.case_sandboxes import CaseSandboxes
from workers.chores.handling import ChoreFailed, ChoreTools, readable_package


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
        runtime = ProcessRuntime(Path(folder) / "guest")
        try:
            report = await check_package(target, {}, CaseSandboxes(runtime, target))
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


def _finding(one: Finding) -> dict[str, str]:
    return {
        "pointer": f"/{one.file}{one.pointer}",
        "code": "package_invalid",
        "message": one.message,
        "hint": one.hint,
        "severity": one.severity,
    }
