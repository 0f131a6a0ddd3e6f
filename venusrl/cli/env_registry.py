"""`venus env show|yank|publish|validate|test-run|delete`: what becomes of uploaded versions."""

from typing import TYPE_CHECKING, Annotated

import typer

from venusrl.cli.output import (
    EXIT_REFUSED,
    EXIT_USAGE,
    AsJson,
    connected,
    fail,
    write_fields,
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from venusrl.models.common import Finding
    from venusrl.models.environments import EnvironmentTestReport, EnvironmentVersion

Ref = Annotated[str, typer.Argument(metavar="NAME@N", help="One version.")]


def show(
    ref: Annotated[str, typer.Argument(metavar="NAME[@N]", help="The newest without a number.")],
    as_json: AsJson = False,
) -> None:
    """One version: state, content hash, tasks, built requirements, findings."""
    name, _, number = ref.partition("@")
    if number and not number.isdecimal():
        fail(f"{ref} is not NAME@N", EXIT_USAGE, as_json)
    with connected(as_json) as client:
        newest = int(number) if number else client.environments.get(name).latest_version
        if newest == 0:
            fail(f"{name} has no version yet; push one", EXIT_REFUSED, as_json)
        version = client.environments.version(name, newest)
    _write_version(version, as_json)


def yank(
    ref: Ref,
    reason: Annotated[str, typer.Option(help="Shown to whoever names the version.")] = "",
    as_json: AsJson = False,
) -> None:
    """Refuse a version to new jobs; jobs that use it go on. `publish` takes it back."""
    name, number = _parts(ref, as_json)
    with connected(as_json) as client:
        version = client.environments.yank(name, number, reason)
    _write_version(version, as_json)


def publish(ref: Ref, as_json: AsJson = False) -> None:
    """End a draft, or a yank: new jobs may get the version."""
    name, number = _parts(ref, as_json)
    with connected(as_json) as client:
        version = client.environments.publish(name, number)
    _write_version(version, as_json)


def validate(ref: Ref, as_json: AsJson = False) -> None:
    """Validate a version again and wait; 1 when it fails."""
    name, number = _parts(ref, as_json)
    with connected(as_json) as client:
        version = client.environments.validate(name, number)
    _write_version(version, as_json)


def run_test(
    ref: Ref,
    split: Annotated[str, typer.Option(help="Whose cases or tasks are played.")] = "test",
    tasks: Annotated[int, typer.Option(min=1, max=64, help="The first so many.")] = 8,
    checkpoint: Annotated[
        str | None, typer.Option(help="ckpt_...; without one the package's cases answer.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=10.0)] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, max=512, help="Of one turn.")] = 128,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Play some of a split on the platform; verdicts, rewards, findings, log. 1 unless all pass."""
    name, number = _parts(ref, as_json)
    with connected(as_json) as client:
        report = client.environments.test(
            name,
            number,
            split=split,
            tasks=tasks,
            checkpoint=checkpoint,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
        )
    write_json(report) if as_json else _write_report(report)
    if not report.passed:
        raise typer.Exit(EXIT_REFUSED)


def delete(name: str, as_json: AsJson = False) -> None:
    """Delete an environment that no live job plays; former jobs keep their versions."""
    with connected(as_json) as client:
        client.environments.delete(name)
    if as_json:
        write_json({"name": name, "state": "deleted"})
        return
    write_line(f"{name} is deleted")


def _parts(ref: str, as_json: bool) -> tuple[str, int]:
    name, _, number = ref.partition("@")
    if not number.isdecimal():
        fail(f"{ref} is not NAME@N", EXIT_USAGE, as_json)
    return name, int(number)


def _write_version(version: "EnvironmentVersion", as_json: bool) -> None:
    if as_json:
        write_json(version)
        return
    built = version.dependencies
    packages = None if built is None else ", ".join(f"{n} {v}" for n, v in built.packages.items())
    fields: dict[str, object] = {
        "version": version.ref,
        "state": f"{version.state}{', draft' if version.draft else ''}",
        "content": version.content_sha,
        "tasks": ", ".join(f"{count} {name}" for name, count in sorted(version.splits.items()))
        or None,
        "requirements": packages,
        "created": f"{version.created_at:%Y-%m-%d %H:%M}",
    }
    if version.yanked_at is not None:
        fields["yanked"] = f"{version.yanked_at:%Y-%m-%d %H:%M} {version.yank_reason or ''}".strip()
    write_fields(fields)
    _write_findings(version.findings)


def _write_findings(findings: "Sequence[Finding]") -> None:
    for one in findings:
        hint = f" ({one.hint})" if one.hint else ""
        write_line(f"{one.severity}: {one.pointer or '/'}: {one.code}: {one.message}{hint}")


def _write_report(report: "EnvironmentTestReport") -> None:
    rows = [
        (one.name, one.task, one.verdict, one.reward, one.end, one.turns, f"{one.seconds:.2f}")
        for one in report.cases
    ]
    if rows:
        write_table(("case", "task", "verdict", "reward", "end", "turns", "s"), rows)
    _write_findings([*report.findings, *(f for one in report.cases for f in one.findings)])
    if report.log:
        write_line("log:")
        write_line(report.log.rstrip("\n"))
    mean = "no reward" if report.mean_reward is None else f"mean reward {report.mean_reward:.3f}"
    verdict = "passed" if report.passed else "failed"
    write_line(f"{verdict}: {report.played} of split {report.split} played, {mean}")
