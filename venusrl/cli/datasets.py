"""`venus datasets`: upload, list, look at and delete datasets."""

import json
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
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:
    from venusrl.models.datasets import DatasetVersion

app = typer.Typer(no_args_is_help=True)


@app.command()
def push(
    name: str,
    files: Annotated[
        list[str],
        typer.Argument(help="A folder with SPLIT.jsonl files, or SPLIT=FILE for each split."),
    ],
    as_json: AsJson = False,
) -> None:
    """Upload a version and wait until it is validated; the same content is the same version."""
    with connected(as_json) as client:
        version = client.datasets.push(name, _splits(files, as_json))
    if as_json:
        write_json(version)
        return
    splits = ", ".join(f"{one.rows} {split}" for split, one in sorted(version.splits.items()))
    write_line(f"{version.ref} is {version.state} ({splits})")
    _write_findings(version)


def _splits(files: list[str], as_json: bool) -> dict[str, Path] | Path:
    if len(files) == 1 and "=" not in files[0]:
        return Path(files[0])
    named = dict(one.partition("=")[::2] for one in files)
    if len(named) != len(files) or not all(named.values()):
        fail("say a folder, or SPLIT=FILE for each split", EXIT_USAGE, as_json)
    return {split: Path(path) for split, path in named.items()}


@app.command("list")
def list_(limit: Limit = 100, as_json: AsJson = False) -> None:
    """Datasets of the project."""
    with connected(as_json) as client:
        found = list(islice(client.datasets.list(), limit))
    if as_json:
        write_json(found)
        return
    rows = [(one.name, one.latest_version, f"{one.created_at:%Y-%m-%d %H:%M}") for one in found]
    write_table(("name", "latest", "created"), rows)


@app.command()
def versions(name: str, limit: Limit = 100, as_json: AsJson = False) -> None:
    """Versions of a dataset."""
    with connected(as_json) as client:
        found = list(islice(client.datasets.versions(name), limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (one.ref, one.state, " ".join(f"{s}:{f.rows}" for s, f in sorted(one.splits.items())),
         len(one.findings) + sum(one.unlisted.values()), f"{one.created_at:%Y-%m-%d %H:%M}",
         one.content_sha[:16])
        for one in found
    ]  # fmt: skip
    write_table(("ref", "state", "rows", "findings", "created", "content"), rows)


@app.command()
def get(ref: str, as_json: AsJson = False) -> None:
    """One version (NAME@N, or the newest of NAME) with its findings."""
    name, _, number = ref.partition("@")
    if number and not number.isdecimal():
        fail(f"{ref} is not NAME@N", EXIT_USAGE, as_json)
    with connected(as_json) as client:
        version = client.datasets.version(
            name, int(number) if number else client.datasets.get(name).latest_version
        )
    if as_json:
        write_json(version)
        return
    write_line(f"{version.ref} is {version.state}, {version.content_sha}")
    _write_findings(version)


@app.command()
def preview(
    ref: str,
    split: Annotated[str, typer.Option(help="Which rows.")] = "train",
    limit: Annotated[int, typer.Option(min=1, max=100)] = 20,
    as_json: AsJson = False,
) -> None:
    """The first rows of a version (NAME@N)."""
    name, _, number = ref.partition("@")
    if not number.isdecimal():
        fail(f"{ref} is not NAME@N", EXIT_USAGE, as_json)
    with connected(as_json) as client:
        seen = client.datasets.preview(name, int(number), split, limit)
    if as_json:
        write_json(seen)
        return
    for one in seen.rows:
        text = one.text if one.row is None else json.dumps(one.row)
        write_line(f"{one.line:>6} {text}")


@app.command()
def delete(name: str, as_json: AsJson = False) -> None:
    """Delete a dataset with all its versions; jobs keep the tasks that they took from it."""
    with connected(as_json) as client:
        client.datasets.delete(name)
    if as_json:
        write_json({"name": name, "state": "deleted"})
        return
    write_line(f"{name} is deleted")


def _write_findings(version: "DatasetVersion") -> None:
    for one in version.findings:
        write_line(f"{one.severity}: {one.pointer or '/'}: {one.message}")
    for code, count in version.unlisted.items():
        write_line(f"and {count} more: {code}")
