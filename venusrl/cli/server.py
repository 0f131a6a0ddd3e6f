"""`venus up` and `venus doctor`: the server's own programs, where its source tree is at hand.

The light package does not contain them; they are looked for by name, so that nothing here depends
on the server.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

from venusrl.cli.output import EXIT_USAGE, AsJson, fail

NO_TREE: Final = """this command runs the platform, which lives in the VenusRL source tree.
Get the tree (a clone of the project's repository, or its source archive), then run there:
  make up        everything on this machine, until Ctrl-C
  make doctor    what this machine has and lacks
To use a platform that runs already, set VENUS_API_URL and VENUS_API_KEY."""


def up(
    home: Annotated[
        Path | None, typer.Option(help="Folder of the installation (VENUS_HOME).")
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="0: any free port.")] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written once everything is ready.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON record once ready: url, key_file, pids.")
    ] = False,
) -> None:
    """Start the whole platform here, in the foreground, until Ctrl-C."""
    arguments: list[str] = []
    for name, value in (("--home", home), ("--port", port), ("--ready-file", ready_file)):
        arguments += [] if value is None else [name, str(value)]
    arguments += ["--json"] if as_json else []
    raise typer.Exit(_main_of("supervisor.up")(arguments))


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine has and lacks, and the remedy."""
    raise typer.Exit(_main_of("supervisor.doctor")(["--json"] if as_json else []))


def _main_of(name: str) -> Callable[[Sequence[str]], int]:
    """The entry function of a server program; outside a tree, where to get one."""
    here = str(Path.cwd())
    if here not in sys.path and Path(here, *name.split(".")).with_suffix(".py").is_file():
        sys.path.insert(0, here)
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "supervisor":
            fail(NO_TREE, EXIT_USAGE)
        fail(f"the server's dependencies are missing ({error.name}); `make venv`", EXIT_USAGE)
    main: Callable[[Sequence[str]], int] = module.main
    return main
