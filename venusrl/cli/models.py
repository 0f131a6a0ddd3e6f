"""`venus models`: what a job can start from: list, add, delete."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from venusrl.cli.output import (
    EXIT_USAGE,
    AsJson,
    Limit,
    connected,
    fail,
    write_fields,
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:
    from venusrl.models.models import ModelInfo

app = typer.Typer(no_args_is_help=True)


@app.command()
def add(
    name: str,
    folder: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="A model folder, uploaded.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Id of a checkpoint.")] = None,
    hub: Annotated[str | None, typer.Option(help="ORG/NAME or ORG/NAME@REV of the hub.")] = None,
    as_json: AsJson = False,
) -> None:
    """Import a model and wait until it can be used: one of --folder, --checkpoint, --hub."""
    if sum(one is not None for one in (folder, checkpoint, hub)) != 1:
        fail("say one of --folder, --checkpoint and --hub", EXIT_USAGE, as_json)
    with connected(as_json) as client:
        if folder is not None:
            model = client.models.upload(name, folder)
        elif checkpoint is not None:
            model = client.models.from_checkpoint(name, checkpoint)
        else:
            repo, _, revision = (hub or "").partition("@")
            model = client.models.from_hub(name, repo, revision or "main")
    _show(model, as_json)


@app.command("list")
def list_(limit: Limit = 100, as_json: AsJson = False) -> None:
    """Built-in models, and those of the project."""
    with connected(as_json) as client:
        found = list(islice(client.models.list(), limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (one.name, one.ref, one.state, one.context_tokens, one.parameters,
         one.source.get("type"))
        for one in found
    ]  # fmt: skip
    write_table(("model", "base", "state", "context", "parameters", "source"), rows)


@app.command()
def get(name: str, as_json: AsJson = False) -> None:
    """One model, by name or id, with what is wrong with one that failed."""
    with connected(as_json) as client:
        model = client.models.get(name)
    _show(model, as_json)


@app.command()
def delete(name: str, as_json: AsJson = False) -> None:
    """Delete a model of the project and its files."""
    with connected(as_json) as client:
        client.models.delete(name)
    if as_json:
        write_json({"name": name, "state": "deleted"})
        return
    write_line(f"{name} is deleted")


def _show(model: "ModelInfo", as_json: bool) -> None:
    if as_json:
        write_json(model)
        return
    write_fields(
        {
            "name": model.name,
            "base": model.ref,
            "state": model.state,
            "context": model.context_tokens,
            "parameters": model.parameters,
            "findings": "; ".join(f"{f.pointer} {f.message}" for f in model.findings) or None,
        }
    )
