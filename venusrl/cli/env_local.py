"""What the local commands of `venus env` share: the machine, notices, findings."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from venusrl.cli.output import EXIT_USAGE, fail, write_line

if TYPE_CHECKING:
    from venusrl._evaluation.judges import EndpointJudge
    from venusrl.env.host.manifest import Finding, Manifest
    from venusrl.env.local.machine import Machine

JUDGE_KEY: Final = "VENUS_JUDGE_KEY"
JUDGE_TOKENS_MAX: Final = 1024
"""Longest verdict of a judge; a longer one is a failure, not half a verdict."""

Folder = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, help="Folder with a venus.toml.")
]
Plain = Annotated[
    bool, typer.Option("--plain", help="Run tools without isolation even where bubblewrap works.")
]
JudgeUrl = Annotated[str | None, typer.Option(help="OpenAI-compatible URL of the judge.")]
JudgeModel = Annotated[str | None, typer.Option(help="The judge's name at that URL.")]
JudgeKey = Annotated[str, typer.Option(help="Environment variable with the judge's key.")]


def judge_of(url: str | None, model: str | None, key_variable: str) -> "EndpointJudge | None":
    """The judge that the options name; without one, asking is a typed failure."""
    from venusrl._evaluation.judges import EndpointJudge
    from venusrl._evaluation.policies import Endpoint, Sampling

    if url is None and model is None:
        return None
    if url is None or model is None:
        fail("a judge needs both --judge-url and --judge-model", EXIT_USAGE)
    sampling = Sampling(temperature=0.0, max_tokens=JUDGE_TOKENS_MAX)
    return EndpointJudge(Endpoint(url, model, os.environ.get(key_variable), sampling))


def say_notice(machine: "Machine") -> None:
    """Say once, on standard error, what does not isolate."""
    if machine.notice is not None:
        sys.stderr.write(f"venus: {machine.notice}\n")


def say_missing(manifest: "Manifest") -> None:
    """Say once, on standard error, which variables the package needs and does not get."""
    for name in manifest.secrets:
        if name not in os.environ:
            sys.stderr.write(f"venus: the package needs the variable {name}; it is not set here\n")


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
