"""`venus checkpoints`: list, download with checked sums, and a look at what one answers."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from venusrl.cli.output import AsJson, Limit, connected, write_json, write_line, write_table

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_(job_id: str, limit: Limit = 100, as_json: AsJson = False) -> None:
    """Checkpoints of a job."""
    with connected(as_json) as client:
        found = list(islice(client.checkpoints.list(job_id), limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (one.id, one.step, one.state, one.reason, sum(file.size for file in one.files),
         one.weights_sha[:16], "-" if one.score is None else f"{one.score:.3f}",
         "best" if one.is_best else "")
        for one in found
    ]  # fmt: skip
    write_table(("checkpoint", "step", "state", "reason", "bytes", "weights", "score", ""), rows)


@app.command()
def get(checkpoint_id: str, as_json: AsJson = False) -> None:
    """One checkpoint with its files."""
    with connected(as_json) as client:
        one = client.checkpoints.get(checkpoint_id)
    if as_json:
        write_json(one)
        return
    write_line(f"{one.id} of {one.job_id}: step {one.step}, {one.state}, {one.reason}")
    write_table(
        ("file", "bytes", "sha256"), [(file.name, file.size, file.sha256) for file in one.files]
    )


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
