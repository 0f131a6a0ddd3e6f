"""`venus env init` and `venus env test`: a package begun and checked, without a server."""

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venusrl.cli.env_local import Folder, Plain, finding_json, say_notice, write_findings
from venusrl.cli.output import EXIT_REFUSED, EXIT_USAGE, AsJson, fail, write_json, write_line

if TYPE_CHECKING:
    from venusrl.env.host.checks import CheckReport
    from venusrl.env.local.machine import Machine


def init(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits, - and _.")],
    parent: Annotated[Path, typer.Option("--in", help="Where the folder is made.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a small working package; its README says what comes next."""
    from venusrl.env.local.init import InitRefused, write_package

    try:
        folder = write_package(name, parent)
    except (InitRefused, OSError) as error:
        fail(str(error), EXIT_USAGE, as_json)
    if as_json:
        write_json({"folder": str(folder)})
        return
    write_line(f"{folder} is ready; next: venus env test {folder}")


def check(folder: Folder = Path(), plain: Plain = False, as_json: AsJson = False) -> None:
    """Check manifest, code and tasks and play cases/, without a server; 1 when something is wrong."""
    from venusrl.env.local.machine import local_machine

    began = time.monotonic()
    with local_machine(plain=plain) as machine:
        say_notice(machine)
        report = asyncio.run(_check(machine, folder))
    findings = [finding_json(one, folder) for one in report.findings]
    document: dict[str, Any] = {
        "passed": report.passed,
        "findings": findings,
        "tasks": dict(report.tasks),
        "cases": report.cases,
        "isolated": machine.notice is None,
        "seconds": round(time.monotonic() - began, 3),
    }
    if as_json:
        write_json(document)
    else:
        write_findings(findings)
        tasks = ", ".join(f"{count} {split}" for split, count in sorted(report.tasks.items()))
        verdict = "passed" if report.passed else "failed"
        said = f"{verdict}: {report.cases} cases, {tasks or 'no'} tasks"
        write_line(f"{said}, {document['seconds']:.2f} s")
    if not report.passed:
        raise typer.Exit(EXIT_REFUSED)


async def _check(machine: "Machine", folder: Path) -> "CheckReport":
    from venusrl.env.host.checks import CheckReport, check_folder
    from venusrl.env.host.manifest import PackageInvalid
    from venusrl.env.local.builds import built_here

    try:
        built = await built_here(folder)
    except PackageInvalid as error:
        return CheckReport(error.findings)
    sandboxes = machine.sandboxes(folder)
    return await check_folder(folder, machine.start, sandboxes, built, given=os.environ)
