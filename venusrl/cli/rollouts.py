"""`venus rollouts`: list by filter, show one with the reason of its fate, branch, export."""

from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from venusrl.cli import branches
from venusrl.cli.output import (
    AsJson,
    Component,
    Limit,
    Lines,
    connected,
    write_fields,
    write_json,
    write_line,
    write_log,
    write_table,
)
from venusrl.models.rollouts import RolloutDetail

app = typer.Typer(no_args_is_help=True)
app.command("branch")(branches.branch)
app.command("branches")(branches.branches)

GroupId = Annotated[str | None, typer.Option(help="Members of one group.")]
Step = Annotated[int | None, typer.Option(min=0, help="Groups that this step trains.")]
TaskId = Annotated[str | None, typer.Option(help="One task of the environment.")]
Purpose = Annotated[str | None, typer.Option(help="train or evaluation.")]
End = Annotated[str | None, typer.Option(help="How it stopped, e.g. done, truncated, timeout.")]
Verdict = Annotated[str | None, typer.Option(help="scored or unscorable.")]
Disposition = Annotated[
    str | None, typer.Option(help="'trained', 'dropped', or whole: 'dropped(stale)'.")
]
Bucket = Annotated[str | None, typer.Option(help="A line of the job's bill.")]
Retried = Annotated[
    bool | None, typer.Option("--retried/--not-retried", help="A try of it failed, or none did.")
]
PolicyVersion = Annotated[
    int | None, typer.Option(min=0, help="Version that sampled its oldest token.")
]
RewardMin = Annotated[float | None, typer.Option(help="Smallest reward.")]
RewardMax = Annotated[float | None, typer.Option(help="Largest reward.")]


class Format(StrEnum):
    """What an export is written as."""

    JSONL = "jsonl"
    PARQUET = "parquet"


@app.command("list")
def list_(
    job_id: str,
    group_id: GroupId = None,
    step: Step = None,
    task_id: TaskId = None,
    purpose: Purpose = None,
    end: End = None,
    verdict: Verdict = None,
    disposition: Disposition = None,
    bucket: Bucket = None,
    retried: Retried = None,
    policy_version: PolicyVersion = None,
    reward_min: RewardMin = None,
    reward_max: RewardMax = None,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="Last ids first.")] = False,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Rollouts of a job, by any of these filters together."""
    filters = {
        "group_id": group_id,
        "step": step,
        "task_id": task_id,
        "purpose": purpose,
        "end": end,
        "verdict": verdict,
        "disposition": disposition,
        "bucket": bucket,
        "retried": retried,
        "policy_version": policy_version,
        "reward_min": reward_min,
        "reward_max": reward_max,
        "order": "desc" if newest_first else "asc",
    }
    with connected(as_json) as client:
        found = list(islice(client.rollouts.list(job_id, **filters), limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (one.id, one.environment, one.task_id, one.end, one.verdict, one.reward, one.turns,
         one.tokens, one.disposition)
        for one in found
    ]  # fmt: skip
    columns = ("rollout", "environment", "task", "end", "verdict", "reward", "turns", "tokens",
               "disposition")  # fmt: skip
    write_table(columns, rows)


@app.command()
def show(rollout_id: str, as_json: AsJson = False) -> None:
    """One rollout: why it was trained or dropped, its tries, placements, group and step."""
    with connected(as_json) as client:
        found = client.rollouts.get(rollout_id)
    if as_json:
        write_json(found)
        return
    write_line(found.reason)
    write_line("")
    write_fields(_fields_of(found))
    if found.tries:
        write_line("")
        tries = [(one.number, one.hop, one.end, one.counts, one.cause) for one in found.tries]
        write_table(("try", "placement", "end", "counts", "cause"), tries)
    if found.hops:
        write_line("")
        hops = [
            (one.hop, one.try_number, one.host_id, one.placed_at, one.engine_s, one.tool_wait_s)
            for one in found.hops
        ]
        columns = ("placement", "try", "host", "placed at", "engine s", "tool wait s")
        write_table(columns, hops)


@app.command()
def logs(
    rollout_id: str, component: Component = None, limit: Lines = 10_000, as_json: AsJson = False
) -> None:
    """What its environment printed in each try, failed ones too, and its graders."""
    with connected(as_json) as client:
        source = client.rollouts.logs(rollout_id, component=component)  # type: ignore[arg-type]
        write_log(islice(source, limit), as_json)


@app.command()
def spans(rollout_id: str, as_json: AsJson = False) -> None:
    """Where its time went: by try, placement and turn, then grading and its batch."""
    with connected(as_json) as client:
        found = client.rollouts.spans(rollout_id)
    if as_json:
        write_json(found)
        return
    rows = [
        (one.name, one.try_number, one.hop, one.turn, one.host_id, one.started_at,
         None if one.seconds is None else f"{one.seconds:.3f}")
        for one in found.spans
    ]  # fmt: skip
    write_table(("span", "try", "placement", "turn", "host", "from", "seconds"), rows)
    for line in found.not_measured:
        write_line(f"note: {line}")


def _fields_of(one: RolloutDetail) -> dict[str, object]:
    fields: dict[str, object] = {
        "environment": one.environment,
        "task": one.task_id,
        "end": one.end,
        "cause": one.cause,
        "verdict": one.verdict,
        "reward": one.reward,
        "unscorable": one.unscorable_reason,
        "advantage": one.advantage,
        "disposition": one.disposition,
        "versions": f"{one.oldest_version}..{one.newest_version}",
        "turns": one.turns,
        "tokens": f"{one.tokens} ({one.sampled_tokens} sampled)",
        "group": f"{one.group.id}: {one.group.disposition}",
        "group cause": one.group.cause,
    }
    if one.training is not None:
        fields["step"] = f"{one.training.step}, position {one.training.position}"
        fields["committed"] = one.training.committed_at
        fields["payload"] = None if one.training.payload is None else one.training.payload.uri
    return fields


@app.command()
def export(
    job_id: str,
    file: Annotated[Path, typer.Argument(dir_okay=False, help="Appears only when it is whole.")],
    format_: Annotated[Format, typer.Option("--format", help="Of the file.")] = Format.JSONL,
    step: Step = None,
    purpose: Purpose = None,
    disposition: Disposition = None,
    bucket: Bucket = None,
    retried: Retried = None,
    reward_min: RewardMin = None,
    reward_max: RewardMax = None,
    as_json: AsJson = False,
) -> None:
    """Trajectories of a job with ids, mask, log-probabilities, versions and rewards."""
    filters = {
        "step": step,
        "purpose": purpose,
        "disposition": disposition,
        "bucket": bucket,
        "retried": retried,
        "reward_min": reward_min,
        "reward_max": reward_max,
    }
    with connected(as_json) as client:
        size = client.rollouts.export(job_id, file, format_.value, **filters)
    if as_json:
        write_json({"file": str(file), "bytes": size})
    else:
        write_line(f"{file}  {size} bytes")
