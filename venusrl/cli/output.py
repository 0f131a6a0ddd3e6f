"""What commands share: the client with its failures as exit statuses, JSON and tables."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from venusrl.client import Client
    from venusrl.models.logs import LogLine

KEY_VARIABLE: Final = "VENUS_API_KEY"

EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3

TRIES: Final = 4
"""With the client's back-off under two seconds: a person waits for the answer."""

TRIES_LASTING: Final = 10
"""With the client's back-off about half a minute."""

INTERRUPTED: Final = 130
"""What shells show for a program that Ctrl-C ended."""

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="Longest list to print.")]

Lines = Annotated[int, typer.Option(min=1, max=1_000_000, help="Most lines to print.")]
Component = Annotated[str | None, typer.Option(help="environment or grader.")]


@contextmanager
def connected(as_json: bool = False, is_lasting: bool = False) -> Iterator["Client"]:
    """A client whose failures become a message and an exit status.

    A command that follows a job outlasts a restart of the API; the others say soon that it is away.
    """
    if not os.environ.get(KEY_VARIABLE):
        fail(f"set {KEY_VARIABLE} to your key", EXIT_USAGE, as_json)
    from venusrl.client import (
        ApiError,
        Client,
        Patience,
        SpecUnreadable,
        Unavailable,
        UsageError,
        VenusError,
    )

    try:
        with Client(patience=Patience(tries=TRIES_LASTING if is_lasting else TRIES)) as client:
            yield client
    except Unavailable as error:
        fail(f"cannot reach the API: {error}", EXIT_UNREACHABLE, as_json)
    except (SpecUnreadable, UsageError) as error:
        fail(str(error), EXIT_USAGE, as_json)
    except ApiError as error:
        findings = [finding.model_dump(mode="json") for finding in error.errors]
        known = {"code": error.code, "errors": findings, "request_id": error.request_id}
        fail(str(error), EXIT_REFUSED, as_json, known)
    except VenusError as error:
        fail(str(error), EXIT_REFUSED, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def fail(
    message: str, status: int, as_json: bool = False, known: Mapping[str, Any] | None = None
) -> NoReturn:
    """Say why on standard error and end with this status."""
    error = {"error": {"detail": message, **(known or {})}}
    text = json.dumps(error) if as_json else f"venus: {message}"
    sys.stderr.write(text + "\n")
    raise typer.Exit(status)


def write_json(value: "BaseModel | Iterable[BaseModel] | Mapping[str, Any]") -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(_plain(value), indent=1) + "\n")


def write_json_line(record: "BaseModel") -> None:
    """One record a line, at once, for a program that reads a stream."""
    sys.stdout.write(record.model_dump_json() + "\n")
    sys.stdout.flush()


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns wide enough for their content; nothing is cut, so that it can be piped."""
    cells = [[column.upper() for column in columns]]
    cells += [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(line.rstrip() + "\n")


def write_fields(fields: Mapping[str, object]) -> None:
    """One name and value a line."""
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        sys.stdout.write(f"{name.ljust(width)}  {'-' if value is None else value}\n")


def write_line(text: str) -> None:
    """A line of text."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def write_log(lines: "Iterable[LogLine]", as_json: bool) -> None:
    """Lines as they come: records with --json, else text behind the time and who printed it."""
    for line in lines:
        if as_json:
            write_json_line(line)
            continue
        who = line.rollout_id or "-"
        tried = "" if line.try_number is None else f"/{line.try_number}"
        if line.lost_before:
            write_line(
                f"{line.at:%H:%M:%S} {line.component} {who}{tried} [{line.lost_before} lines lost]"
            )
        write_line(f"{line.at:%H:%M:%S} {line.component} {who}{tried} {printable(line.text)}")


def printable(text: str) -> str:
    """Text of strangers without what steers a terminal."""
    return "".join(
        char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in text
    )


def is_terminal() -> bool:
    """Whether a person watches standard output."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return [item.model_dump(mode="json") for item in value]
