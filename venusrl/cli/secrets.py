"""`venus secrets`: write, list and delete secrets of the project. A value never stands in a command line."""

import sys
from itertools import islice

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

app = typer.Typer(no_args_is_help=True)


@app.command("set")
def set_(name: str, as_json: AsJson = False) -> None:
    """Store a value from standard input, or typed without echo; it is never shown again.

    One line break at the end of standard input is not part of the value.
    """
    value = _value(as_json)
    with connected(as_json) as client:
        secret = client.secrets.set(name, value)
    if as_json:
        write_json(secret)
        return
    write_line(f"{secret.name} is stored")


@app.command("list")
def list_(limit: Limit = 100, as_json: AsJson = False) -> None:
    """Names of the project's secrets; never their values."""
    with connected(as_json) as client:
        found = list(islice(client.secrets.list(), limit))
    if as_json:
        write_json(found)
        return
    rows = [(one.name, f"{one.updated_at:%Y-%m-%d %H:%M}") for one in found]
    write_table(("secret", "written"), rows)


@app.command()
def delete(name: str, as_json: AsJson = False) -> None:
    """Delete a secret; refused while a job that has not ended names it."""
    with connected(as_json) as client:
        client.secrets.delete(name)
    if as_json:
        write_json({"name": name, "state": "deleted"})
        return
    write_line(f"{name} is deleted")


def _value(as_json: bool) -> str:
    if sys.stdin.isatty():
        prompted: str = typer.prompt("value", hide_input=True, err=True)
        return prompted
    try:
        value = sys.stdin.read()
    except UnicodeDecodeError:
        fail("standard input is no text", EXIT_USAGE, as_json)
    return value.removesuffix("\n").removesuffix("\r")
