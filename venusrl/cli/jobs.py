"""`venus jobs`: submit, validate, list, watch and steer jobs; their numbers."""

import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from venusrl.cli.output import (
    EXIT_REFUSED,
    EXIT_USAGE,
    AsJson,
    Component,
    Limit,
    Lines,
    connected,
    fail,
    write_fields,
    write_json,
    write_json_line,
    write_line,
    write_log,
    write_table,
)
from venusrl.cli.schedule import profile, schedule

if TYPE_CHECKING:
    from venusrl.client import Client
    from venusrl.models.jobs import EvaluatedEnvironment, Evaluation, Event, Job

app = typer.Typer(no_args_is_help=True)
app.command()(schedule)
app.command()(profile)

SpecFile = Annotated[
    Path, typer.Argument(dir_okay=False, help="Job spec, YAML or JSON; - is standard input.")
]
Names = Annotated[str, typer.Option(help="Comma-separated; all when empty.")]
Watch = Annotated[bool, typer.Option("--watch", help="Follow the job until it is over.")]


@app.command()
def submit(
    spec: SpecFile,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the spec's seed.")] = None,
    watch_it: Watch = False,
    as_json: AsJson = False,
) -> None:
    """Submit a job; with --watch also follow it."""
    with connected(as_json, is_lasting=watch_it) as client:
        job = client.jobs.create(_document(spec, seed))
        if watch_it:
            _watch(client, job.id, as_json)
            return
    _show(job, as_json)


@app.command()
def validate(spec: SpecFile, as_json: AsJson = False) -> None:
    """Say what is wrong with a spec, and what each `auto` becomes; changes nothing."""
    with connected(as_json) as client:
        answer = client.jobs.validate(_document(spec, None))
    if as_json:
        write_json(answer)
    else:
        for one in answer.findings:
            hint = f" ({one.hint})" if one.hint else ""
            write_line(f"{one.severity}: {one.pointer or '/'}: {one.message}{hint}")
        for auto in answer.resolved:
            write_line(f"auto: {auto.pointer} = {auto.value}: {auto.reason}")
        write_line("valid" if answer.valid else "not valid")
    if not answer.valid:
        raise typer.Exit(EXIT_REFUSED)


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Jobs of the project, newest first."""
    with connected(as_json) as client:
        found = list(islice(client.jobs.list(state=state), limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (one.id, one.name, one.state, one.attempt, f"{one.created_at:%Y-%m-%d %H:%M}",
         one.queue_reason)
        for one in found
    ]  # fmt: skip
    write_table(("job", "name", "state", "attempt", "created", "waits for"), rows)


@app.command()
def get(job_id: str, as_json: AsJson = False) -> None:
    """One job."""
    with connected(as_json) as client:
        job = client.jobs.get(job_id)
    _show(job, as_json)


@app.command()
def watch(job_id: str, as_json: AsJson = False) -> None:
    """Follow a job until it is over; ends with 1 unless it succeeded. --json: events, one a line."""
    with connected(as_json, is_lasting=True) as client:
        _watch(client, job_id, as_json)


@app.command()
def pause(job_id: str, as_json: AsJson = False) -> None:
    """Drain, write a checkpoint, give everything back; `resume` goes on."""
    _verb(as_json, lambda client: client.jobs.pause(job_id))


@app.command()
def resume(job_id: str, as_json: AsJson = False) -> None:
    """Go on after a pause."""
    _verb(as_json, lambda client: client.jobs.resume(job_id))


@app.command()
def cancel(job_id: str, as_json: AsJson = False) -> None:
    """End a job with a checkpoint of its last step."""
    _verb(as_json, lambda client: client.jobs.cancel(job_id))


@app.command()
def restart(
    job_id: str,
    checkpoint: Annotated[str | None, typer.Option(help="The newest when not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """A new attempt of an ended job, from a checkpoint."""
    _verb(as_json, lambda client: client.jobs.restart(job_id, checkpoint))


@app.command()
def branch(
    job_id: str,
    checkpoint: Annotated[str | None, typer.Option(help="The newest when not given.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the new job.")] = None,
    overrides: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Part of a spec, YAML or JSON.")
    ] = None,
    values: Annotated[
        list[str] | None, typer.Option("--set", help="One value: stop.max_steps=200; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """A new job from a copy of this one's spec and a checkpoint, with other values where given."""
    with connected(as_json) as client:
        laid = _overrides(overrides, values or [])
        job = client.jobs.branch(job_id, checkpoint, name=name, overrides=laid)
    _show(job, as_json)


@app.command()
def update(
    job_id: str,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    labels: Annotated[
        list[str] | None, typer.Option("--label", help="NAME=VALUE; replaces all labels.")
    ] = None,
    priority: Annotated[str | None, typer.Option(help="low, normal or high.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="The last step.")] = None,
    max_wall_hours: Annotated[float | None, typer.Option(help="Budget; replaces it.")] = None,
    etag: Annotated[str | None, typer.Option("--if-match", help="Only if unchanged.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change a job, also while it runs."""
    changed = _labels(labels or [], as_json)
    with connected(as_json) as client:
        job = client.jobs.update(
            job_id,
            name=name,
            labels=changed or None,
            priority=priority,  # type: ignore[arg-type]  # the server knows which there are
            max_steps=max_steps,
            budget=None if max_wall_hours is None else {"max_wall_hours": max_wall_hours},
            etag=etag,
        )
    _show(job, as_json)


@app.command()
def schema() -> None:
    """The JSON Schema of a job spec, for editors; needs no server."""
    from venusrl.models.job_schema import job_schema

    write_json(job_schema())


@app.command()
def events(
    job_id: str,
    after: Annotated[int, typer.Option(min=0, help="Only events above this id.")] = 0,
    types: Names = "",
    live: Annotated[bool, typer.Option("--follow", help="Wait for more until the end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Events of a job, one a line."""
    wanted = tuple(part for part in types.split(",") if part)
    with connected(as_json, is_lasting=live) as client:
        jobs = client.jobs
        source = (
            jobs.follow(job_id, after=after, types=wanted)
            if live
            else jobs.events(job_id, after=after, types=wanted)
        )
        for event in source:
            write_json_line(event) if as_json else write_line(_event_line(event))


@app.command()
def logs(
    job_id: str,
    component: Component = None,
    rollout: Annotated[str | None, typer.Option(help="Lines of one rollout.")] = None,
    after: Annotated[str | None, typer.Option(help="Only lines behind this id.")] = None,
    limit: Lines = 10_000,
    as_json: AsJson = False,
) -> None:
    """What environments and graders printed, by the end of the try. --json: lines, one a record."""
    with connected(as_json) as client:
        source = client.jobs.logs(
            job_id,
            component=component,  # type: ignore[arg-type]  # the server knows which there are
            rollout=rollout,
            after=after,
        )
        write_log(islice(source, limit), as_json)


@app.command()
def metrics(
    job_id: str,
    names: Names = "",
    after_step: Annotated[int, typer.Option(min=-1)] = -1,
    as_json: AsJson = False,
) -> None:
    """Points of a job's series."""
    wanted = tuple(part for part in names.split(",") if part)
    with connected(as_json) as client:
        points = client.jobs.metrics(job_id, names=wanted, after_step=after_step)
    if as_json:
        write_json(points)
        return
    rows = [(point.attempt_id, point.step, point.name, f"{point.value:.6g}") for point in points]
    write_table(("attempt", "step", "name", "value"), rows)


@app.command()
def evaluations(job_id: str, as_json: AsJson = False) -> None:
    """Finished held-out evaluations; of several environments the total, then each."""
    with connected(as_json) as client:
        found = client.jobs.evaluations(job_id)
    if as_json:
        write_json(found)
        return
    rows: list[tuple[object, ...]] = []
    for one in found:
        rows.append((one.attempt_id, one.step, "", *_numbers(one)))
        rows += [("", "", part.name, *_numbers(part)) for part in one.environments]
    columns = ("attempt", "step", "environment", "tasks", "scored", "score", "estimates")
    write_table(columns, rows)


def _numbers(one: "Evaluation | EvaluatedEnvironment") -> tuple[object, ...]:
    score = "-" if one.score is None else f"{one.score:.3f}"
    shown = (f"{e.name} {e.value:.3f} [{e.low:.3f}, {e.high:.3f}]" for e in one.estimates)
    return one.tasks, one.scored, score, "  ".join(shown)


@app.command()
def ledger(job_id: str, as_json: AsJson = False) -> None:
    """Every rollout of a job once, counted by purpose, end, verdict and disposition."""
    with connected(as_json) as client:
        book = client.jobs.ledger(job_id)
    if as_json:
        write_json(book)
        return
    rows: list[tuple[object, ...]] = [
        (line.purpose, line.end, line.verdict, line.disposition, line.rollouts)
        for line in book.lines
    ]
    rows.append(("all", "", "", "", book.rollouts))
    write_table(("purpose", "end", "verdict", "disposition", "rollouts"), rows)


@app.command()
def bill(job_id: str, as_json: AsJson = False) -> None:
    """Where its engine-, trainer- and sandbox-seconds went, with the share of each line."""
    with connected(as_json) as client:
        found = client.jobs.bill(job_id)
    if as_json:
        write_json(found)
        return
    rows: list[tuple[object, ...]] = []
    for resource, wall_s in found.wall_s.items():
        for line in found.lines:
            if line.resource == resource and (line.seconds or line.rollouts):
                share = line.seconds / wall_s if wall_s else 0.0
                seconds = f"{line.seconds:.1f}"
                rows.append((resource, line.bucket, seconds, f"{share:.1%}", line.rollouts))
        rows.append((resource, "all", f"{wall_s:.1f}", "100.0%" if wall_s else "-", ""))
    write_table(("resource", "bucket", "seconds", "share", "rollouts"), rows)
    if not found.is_final:
        write_line("not final: an attempt still runs, or is being settled")


@app.command()
def delete(job_id: str, as_json: AsJson = False) -> None:
    """Delete an ended job with its trajectories, logs and checkpoints; kept ones stay."""
    with connected(as_json) as client:
        client.jobs.delete(job_id)
    if as_json:
        write_json({"deleted": job_id})
    else:
        write_line(f"{job_id} deleted")


def _document(spec: Path, seed: int | None) -> dict[str, Any]:
    from venusrl._spec import read_spec, read_stream

    document = read_stream(sys.stdin.buffer, "stdin") if str(spec) == "-" else read_spec(spec)
    return document if seed is None else {**document, "seed": seed}


def _overrides(file: Path | None, values: list[str]) -> dict[str, Any]:
    """Overrides of a file, and single values by dotted path over them."""
    from venusrl._spec import laid_over, read_spec

    return laid_over({} if file is None else read_spec(file), values)


def _labels(given: list[str], as_json: bool) -> dict[str, str]:
    """Labels by name; each is NAME=VALUE, and none is said twice."""
    pairs = [part.partition("=") for part in given]
    made = {name: value for name, _, value in pairs}
    if len(made) < len(given) or not all(name and mark for name, mark, _ in pairs):
        fail("say --label NAME=VALUE, once for each name", EXIT_USAGE, as_json)
    return made


def _verb(as_json: bool, ask: "Callable[[Client], Job]") -> None:
    with connected(as_json) as client:
        job = ask(client)
    _show(job, as_json)


def _watch(client: "Client", job_id: str, as_json: bool) -> None:
    from venusrl.cli.watch import follow, screen_for_output

    if as_json:
        for event in client.jobs.follow(job_id):
            write_json_line(event)
        client.jobs.wait(job_id)
        return
    with screen_for_output() as screen:
        job = follow(client, job_id, screen).job
    if job.state == "succeeded":
        write_line(f"{job.id} succeeded")
        return
    fail(f"{job.id} {_why(job)}", EXIT_REFUSED)


def _why(job: "Job") -> str:
    if job.failure is not None:
        hint = f": {job.failure.hint}" if job.failure.hint else ""
        return f"{job.state} with {job.failure.code}{hint}"
    return f"is {job.state}" + (f": {job.queue_reason}" if job.queue_reason else "")


def _show(job: "Job", as_json: bool) -> None:
    if as_json:
        write_json(job)
        return
    write_fields(
        {
            "id": job.id,
            "name": job.name,
            "state": job.state,
            "wanted": job.desired,
            "attempt": f"{job.attempt} ({job.attempt_id})",
            "queue": job.queue_position if job.queue_reason is None else job.queue_reason,
            "starts": job.predicted_start or job.predicted_start_reason,
            "failure": None if job.failure is None else _why(job),
            "best": job.best_checkpoint,
            "created": job.created_at,
            "started": job.started_at,
            "ended": job.ended_at,
        }
    )


def _event_line(event: "Event") -> str:
    body = " ".join(f"{name}={value}" for name, value in event.body.items())
    return f"{event.id:>5} {event.created_at:%H:%M:%S} {event.type} {body}".rstrip()
