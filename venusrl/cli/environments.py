"""`venus env`: begin, check, try and upload an environment package; list what is uploaded."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from venusrl.cli import env_check, env_eval, env_registry, env_score
from venusrl.cli.output import AsJson, Limit, connected, write_json, write_line, write_table

app = typer.Typer(no_args_is_help=True)
app.command("init")(env_check.init)
app.command("test")(env_check.check)
app.command("eval")(env_eval.evaluate)
app.command("score")(env_score.score)
app.command("show")(env_registry.show)
app.command("yank")(env_registry.yank)
app.command("publish")(env_registry.publish)
app.command("validate")(env_registry.validate)
app.command("test-run")(env_registry.run_test)
app.command("delete")(env_registry.delete)


@app.command()
def push(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Folder with a venus.toml.")
    ],
    draft: Annotated[
        bool, typer.Option("--draft", help="Not the newest version until `venus env publish`.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a package and wait until it is validated; the same content is the same version."""
    with connected(as_json) as client:
        version = client.environments.push(folder, draft=draft)
    if as_json:
        write_json(version)
        return
    splits = ", ".join(f"{count} {name}" for name, count in sorted(version.splits.items()))
    state = "a ready draft" if version.draft and version.state == "ready" else version.state
    write_line(f"{version.ref} is {state} ({splits}), {version.content_sha}")


@app.command("list")
def list_(limit: Limit = 100, as_json: AsJson = False) -> None:
    """Environments of the project."""
    with connected(as_json) as client:
        found = list(islice(client.environments.list(), limit))
    if as_json:
        write_json(found)
        return
    rows = [(one.name, one.latest_version, f"{one.created_at:%Y-%m-%d %H:%M}") for one in found]
    write_table(("name", "latest", "created"), rows)


@app.command()
def versions(name: str, limit: Limit = 100, as_json: AsJson = False) -> None:
    """Versions of an environment, with what is wrong with those that failed."""
    with connected(as_json) as client:
        found = list(islice(client.environments.versions(name), limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (one.ref, f"{one.state}{' draft' if one.draft else ''}", sum(one.splits.values()),
         f"{one.created_at:%Y-%m-%d %H:%M}", one.content_sha,
         "; ".join(f"{f.pointer} {f.message}" for f in one.findings) or None)
        for one in found
    ]  # fmt: skip
    write_table(("ref", "state", "tasks", "created", "content", "findings"), rows)
