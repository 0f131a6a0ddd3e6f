"""`venus doctor`: what was found on this machine, what is missing, and the remedy for each."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from domain.errors import SecretUnavailable
from infra.settings import BadSettingError, Settings
from infra.vault import KEY_FILE, Vault
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
        probe_secrets(settings),
        probes.probe_gpu(),
        probes.probe_kvm(),
        probes.probe_qemu_tools(),
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


def probe_secrets(settings: Settings) -> Finding:
    """Whether secrets at rest can be opened: a key that is lost cannot be made again."""
    path = settings.home / KEY_FILE
    if settings.secret_keys:
        count = len(settings.secret_keys)
        return Finding("secrets", True, True, f"{count} key(s) in VENUS_SECRET_KEY")
    try:
        vault = Vault.of(settings)
    except SecretUnavailable as error:
        remedy = "restore the file from a copy, or remove it and write all secrets again"
        return Finding("secrets", False, True, str(error), remedy)
    if not vault.has_key:
        detail = "no key yet: `venus up` makes one in the home at its first start"
        remedy = "set VENUS_SECRET_KEY where processes are started without `venus up`"
        return Finding("secrets", False, False, detail, remedy)
    if path.stat().st_mode & 0o077:
        return Finding("secrets", False, True, f"others may read {path}", f"chmod 600 {path}")
    return Finding("secrets", True, True, f"the home's own key, {path}")


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
