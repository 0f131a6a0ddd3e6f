"""`venus audit` and `venus usage`: who did what, and what was held for how long."""

from datetime import datetime
from itertools import islice
from typing import Annotated, Literal

import typer

from venusrl.cli.output import AsJson, Limit, connected, write_json, write_table

Since = Annotated[datetime | None, typer.Option(help="From this time on, UTC.")]
Until = Annotated[datetime | None, typer.Option(help="Before this time, UTC.")]


def audit(
    actor: Annotated[str | None, typer.Option(help="Id of a key.")] = None,
    action: Annotated[str | None, typer.Option(help="Such as jobs.create.")] = None,
    target: Annotated[str | None, typer.Option(help="What was named or made.")] = None,
    outcome: Annotated[Literal["done", "refused"] | None, typer.Option(help="Only these.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Who did what, newest first; needs a key with the role admin."""
    with connected(as_json) as client:
        source = client.audit.list(
            actor=actor,
            action=action,
            target=target,
            outcome=outcome,
            since=_utc(since),
            until=_utc(until),
            newest_first=True,
        )
        found = list(islice(source, limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (f"{one.created_at:%Y-%m-%d %H:%M:%S}", one.actor, one.action, one.target, one.part,
         one.created, one.code or one.outcome, one.address)
        for one in found
    ]  # fmt: skip
    columns = ("time", "actor", "action", "target", "part", "created", "outcome", "address")
    write_table(columns, rows)


def usage(
    group_by: Annotated[
        Literal["job", "project", "resource"], typer.Option(help="What a line is summed over.")
    ] = "job",
    bucket: Annotated[Literal["hour", "day"], typer.Option(help="Of time, UTC.")] = "day",
    since: Since = None,
    until: Until = None,
    limit: Limit = 1000,
    as_json: AsJson = False,
) -> None:
    """Seconds for which engines, trainers and sandboxes were held."""
    with connected(as_json) as client:
        source = client.usage.list(
            group_by=group_by, bucket=bucket, since=_utc(since), until=_utc(until)
        )
        found = list(islice(source, limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (f"{one.bucket_start:%Y-%m-%d %H:%M}", one.job_id or one.project_id, one.resource,
         f"{one.seconds:.1f}")
        for one in found
    ]  # fmt: skip
    write_table(("from", group_by if group_by != "resource" else "", "resource", "seconds"), rows)


def _utc(at: datetime | None) -> datetime | None:
    from datetime import UTC

    return None if at is None else at.replace(tzinfo=UTC)
