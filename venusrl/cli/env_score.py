"""`venus env score`: a job's stored rollouts through the rewards of a local package."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venusrl.cli.env_local import (
    JUDGE_KEY,
    Folder,
    JudgeKey,
    JudgeModel,
    JudgeUrl,
    Plain,
    judge_of,
    say_missing,
    say_notice,
)
from venusrl.cli.output import (
    EXIT_REFUSED,
    AsJson,
    connected,
    fail,
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:
    from venusrl._evaluation.judges import EndpointJudge
    from venusrl._evaluation.rescore import Rescore, Source
    from venusrl.env.local.machine import Machine
    from venusrl.env.values import Value

Purpose = Annotated[str | None, typer.Option(help="train or evaluation; both if not given.")]


def score(
    folder: Folder,
    job_id: Annotated[str, typer.Option("--from", help="Job whose rollouts are graded again.")],
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Rollouts to read.")] = 1000,
    purpose: Purpose = None,
    changes: Annotated[int, typer.Option(min=0, help="Changed rollouts to list.")] = 10,
    judge_url: JudgeUrl = None,
    judge_model: JudgeModel = None,
    judge_key_variable: JudgeKey = JUDGE_KEY,
    plain: Plain = False,
    as_json: AsJson = False,
) -> None:
    """Grade stored rollouts again under changed rewards: old against new, nothing is played."""
    from venusrl._evaluation.rescore import RescoreStopped, Source, summaries
    from venusrl.env.host.manifest import PackageInvalid
    from venusrl.env.host.ports import EnvironmentFault
    from venusrl.env.local.machine import local_machine

    judge = judge_of(judge_url, judge_model, judge_key_variable)
    try:
        with connected(as_json, is_lasting=True) as client, local_machine(plain=plain) as machine:
            say_notice(machine)
            source = Source(client, client.jobs.get(job_id), limit, purpose)
            result = asyncio.run(_run(machine, folder, source, judge))
    except (RescoreStopped, PackageInvalid, EnvironmentFault) as error:
        fail(str(error), EXIT_REFUSED, as_json)
    changed = [one for one in result.values if not one.is_same][:changes]
    if as_json:
        write_json(
            {
                "rollouts": result.rollouts,
                "graded": result.graded,
                "components": [asdict(one) for one in summaries(result.values)],
                "changes": [{**asdict(one), "old": _json(one.old), "new": _json(one.new)}
                            for one in changed],
                "findings": [asdict(one) for one in result.findings],
            }
        )  # fmt: skip
    else:
        _write(result, [(one.rollout_id, one.component, _text(one.old), _text(one.new))
                        for one in changed])  # fmt: skip
    if not result.graded:
        raise typer.Exit(EXIT_REFUSED)


async def _run(
    machine: "Machine", folder: Path, source: "Source", judge: "EndpointJudge | None"
) -> "Rescore":
    from venusrl._evaluation.rescore import rescore
    from venusrl.env.host.episode import Stage
    from venusrl.env.host.manifest import read_manifest

    manifest = read_manifest(folder)
    say_missing(manifest)
    process = await machine.start(folder, manifest, source.config, judge)
    try:
        return await rescore(Stage(process, manifest, machine.sandboxes(folder)), source)
    finally:
        await process.stop()
        if judge is not None:
            await judge.close()


def _write(result: "Rescore", changed: list[tuple[str, str, str, str]]) -> None:
    from venusrl._evaluation.rescore import summaries

    for finding in result.findings:
        write_line(f"{finding.code}: {finding.subject}: {finding.message}")
    rows = [
        (one.component, _mean(one.old_mean), _mean(one.new_mean), one.old_unscorable,
         one.new_unscorable, one.changed, one.rollouts)
        for one in summaries(result.values)
    ]  # fmt: skip
    columns = ("component", "old", "new", "old unscorable", "new unscorable", "changed", "rollouts")
    write_table(columns, rows)
    if changed:
        write_line("")
        write_table(("rollout", "component", "old", "new"), changed)
    write_line(f"{result.graded} of {result.rollouts} rollouts graded")


def _mean(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def _json(value: "Value | None") -> Any:
    from venusrl.env.wire import value_to_json

    return None if value is None else value_to_json(value)


def _text(value: "Value | None") -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else f"unscorable: {value.reason}"
