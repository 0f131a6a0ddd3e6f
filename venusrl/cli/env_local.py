"""What the local commands of `venus env` share: the machine, notices, findings."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venusrl.cli.output import write_line

if TYPE_CHECKING:
    from venusrl.env.host.manifest import Finding
    from venusrl.env.local.machine import Machine

Folder = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, help="Folder with a venus.toml.")
]
Plain = Annotated[
    bool, typer.Option("--plain", help="Run tools without isolation even where bubblewrap works.")
]


def say_notice(machine: "Machine") -> None:
    """Say once, on standard error, what does not isolate."""
    if machine.notice is not None:
        sys.stderr.write(f"venus: {machine.notice}\n")


def finding_json(finding: "Finding", folder: Path) -> dict[str, Any]:
    """One finding for a program."""
    from venusrl.env.local.places import place_of

    place = place_of(finding, folder)
    return {
        "file": place.file,
        "line": place.line,
        "pointer": finding.pointer,
        "severity": finding.severity,
        "message": finding.message,
        "hint": finding.hint,
    }


def write_findings(findings: Sequence[dict[str, Any]]) -> None:
    """One line a finding, as compilers write them."""
    for one in findings:
        line = f":{one['line']}" if one["line"] else ""
        hint = f" ({one['hint']})" if one["hint"] else ""
        write_line(f"{one['file']}{line}: {one['severity']}: {one['message']}{hint}")
