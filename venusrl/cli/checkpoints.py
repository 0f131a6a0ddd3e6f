"""`venus checkpoints`: list, keep, delete, export, download with checked sums, and a look at one."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from venusrl.cli.output import AsJson, Limit, connected, write_json, write_line, write_table

if TYPE_CHECKING:
    from venusrl.models.checkpoints import Checkpoint

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_(
    job_id: Annotated[str | None, typer.Argument(help="All of the project without it.")] = None,
    state: Annotated[str | None, typer.Option(help="writing, ready or expired.")] = None,
    keep: Annotated[bool | None, typer.Option("--kept/--not-kept")] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Checkpoints of a job, or of all jobs of the project."""
    with connected(as_json) as client:
        found = list(islice(client.checkpoints.list(job_id, state=state, keep=keep), limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (one.id, one.job_id, one.step, one.state, one.reason, _stays(one),
         sum(file.size for file in one.files), one.weights_sha[:16],
         "-" if one.score is None else f"{one.score:.3f}", "best" if one.is_best else "")
        for one in found
    ]  # fmt: skip
    columns = (
        "checkpoint", "job", "step", "state", "reason", "stays", "bytes", "weights", "score", "",
    )  # fmt: skip
    write_table(columns, rows)


def _stays(one: "Checkpoint") -> str:
    if one.keep:
        return "kept"
    return "-" if one.expires_at is None else f"until {one.expires_at:%Y-%m-%d}"


@app.command("show")
@app.command("get", hidden=True)
def show(checkpoint_id: str, as_json: AsJson = False) -> None:
    """One checkpoint with its files."""
    with connected(as_json) as client:
        one = client.checkpoints.get(checkpoint_id)
    if as_json:
        write_json(one)
        return
    write_line(f"{one.id} of {one.job_id}: step {one.step}, {one.state}, {one.reason}")
    write_line(f"stays: {_stays(one)}")
    if one.export is not None:
        write_line(f"exported: {one.export.name}  {one.export.size} bytes  {one.export.sha256}")
    write_table(
        ("file", "bytes", "sha256"), [(file.name, file.size, file.sha256) for file in one.files]
    )


@app.command()
def keep(
    checkpoint_id: str,
    off: Annotated[bool, typer.Option("--off", help="Keep it no longer.")] = False,
    ttl_days: Annotated[int | None, typer.Option(min=1, help="Days from its creation.")] = None,
    no_ttl: Annotated[bool, typer.Option("--no-ttl", help="It does not expire by age.")] = False,
    etag: Annotated[str | None, typer.Option("--if-match", help="Only if unchanged.")] = None,
    as_json: AsJson = False,
) -> None:
    """Keep a checkpoint from retention; --off with --ttl-days lets it expire by age."""
    with connected(as_json) as client:
        one = client.checkpoints.update(
            checkpoint_id, keep=not off, ttl_days="never" if no_ttl else ttl_days, etag=etag
        )
    if as_json:
        write_json(one)
    else:
        write_line(f"{one.id} stays: {_stays(one)}")


@app.command()
def delete(checkpoint_id: str, as_json: AsJson = False) -> None:
    """Delete a checkpoint, kept or not; refused while something needs it."""
    with connected(as_json) as client:
        client.checkpoints.delete(checkpoint_id)
    if as_json:
        write_json({"deleted": checkpoint_id})
    else:
        write_line(f"{checkpoint_id} deleted")


@app.command()
def export(
    checkpoint_id: str,
    folder: Annotated[
        Path | None, typer.Argument(file_okay=False, help="Download it there too.")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="safetensors.")] = "safetensors",
    as_json: AsJson = False,
) -> None:
    """Make one file of weights and model description; with a folder also download it."""
    with connected(as_json) as client:
        made = client.checkpoints.export(checkpoint_id, format_)  # type: ignore[arg-type]
        if folder is not None:
            client.checkpoints.fetch_export(checkpoint_id, folder)
    if as_json:
        write_json(made)
        return
    name = made.name if folder is None else str(folder / made.name)
    write_line(f"{name}  {made.size} bytes  {made.sha256}")


@app.command()
def download(
    checkpoint_id: str,
    folder: Annotated[Path, typer.Argument(file_okay=False, help="Made if it is not there.")],
    as_json: AsJson = False,
) -> None:
    """Download every file of a checkpoint; a file appears only when its sum is right."""
    with connected(as_json) as client:
        checkpoint = client.checkpoints.get(checkpoint_id)
        client.checkpoints.download(checkpoint_id, folder)
    if as_json:
        write_json(checkpoint)
        return
    for file in checkpoint.files:
        write_line(f"{folder / file.name}  {file.size} bytes  {file.sha256}")


@app.command()
def generate(
    checkpoint_id: str,
    prompt: str,
    max_tokens: Annotated[int, typer.Option(min=1, max=512)] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, max=10.0, help="0: greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """One answer of the checkpoint's model to a small prompt."""
    with connected(as_json) as client:
        answer = client.checkpoints.generate(
            checkpoint_id, prompt, max_tokens=max_tokens, temperature=temperature, seed=seed
        )
    if as_json:
        write_json(answer)
    else:
        write_line(answer.text)
