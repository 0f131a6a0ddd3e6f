"""`venus doctor`: what was found on this machine, what is missing, and the remedy for each."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from infra.settings import BadSettingError, Settings
from supervisor import probes
from supervisor.account import NoAccountError, choose_account
from supervisor.probes import Finding


def examine(settings: Settings) -> list[Finding]:
    """Every finding, needed ones first."""
    findings = [
        probes.probe_python(),
        probes.probe_torch(),
        probes.probe_postgres(),
        probe_account(),
        probes.probe_valkey(),
        probes.probe_bwrap(),
        probes.probe_disk(settings.home),
        probes.probe_port(settings.api_host, settings.api_port),
        probes.probe_gpu(),
        probes.probe_kvm(),
    ]
    return sorted(findings, key=lambda finding: not finding.is_needed)


def probe_account() -> Finding:
    """Who would run the embedded Postgres."""
    try:
        account = choose_account()
    except NoAccountError as error:
        remedy = "run `venus up` as an ordinary user, or set DATABASE_URL"
        return Finding("account", False, True, str(error), remedy)
    name = "this user" if account.is_self else f"{account.name} (we are root)"
    return Finding("account", True, True, f"Postgres runs as {name}")


def render(findings: Sequence[Finding]) -> str:
    """Plain lines: a mark, the name, what was found, and below it the remedy."""
    lines = []
    for finding in findings:
        mark = "ok" if finding.is_ok else ("MISSING" if finding.is_needed else "-")
        lines.append(f"{mark:8}{finding.name:11}{finding.detail}")
        if finding.remedy:
            lines.append(f"{'':19}remedy: {finding.remedy}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command-line entry; 0 when nothing that is needed is missing."""
    parser = argparse.ArgumentParser(prog="venus doctor", description="examine this machine")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    given = parser.parse_args(arguments)
    try:
        findings = examine(Settings.from_env())
    except BadSettingError as error:
        sys.stderr.write(f"venus: {error}\n")
        return 2
    is_whole = all(finding.is_ok for finding in findings if finding.is_needed)
    if given.json:
        report = {"ok": is_whole, "findings": [asdict(finding) for finding in findings]}
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
    else:
        ending = "everything needed is here" if is_whole else "something needed is missing"
        sys.stdout.write(f"{render(findings)}\n{ending}\n")
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
