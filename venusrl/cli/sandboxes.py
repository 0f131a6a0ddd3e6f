"""`venus sandboxes`: machines for commands, apart from any job."""

import base64
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
    from venusrl.models.sandboxes import Executed, Sandbox

app = typer.Typer(no_args_is_help=True)

TIMED_OUT = 124
"""What `timeout` exits with."""

Variables = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME=VALUE", help="A variable; may be repeated."),
]
Lifetime = Annotated[
    float, typer.Option(min=0.001, max=86_400, help="Seconds from its start; pauses do not count.")
]


@app.command()
def create(
    template: Annotated[str, typer.Option(help="What it starts from.")] = "default",
    n: Annotated[int, typer.Option("-n", min=1, max=64, help="So many, as one fork.")] = 1,
    lifetime: Lifetime = 300.0,
    env: Variables = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until they run.")] = True,
    as_json: AsJson = False,
) -> None:
    """Start sandboxes; prints their ids. They end by themselves when their lifetime is over."""
    with connected(as_json) as client:
        options = {} if wait else {"wait_s": 0.0}
        group = client.sandboxes.create_group(
            n, template=template, lifetime_s=lifetime, env=_variables(env), **options
        )
    if as_json:
        write_json(group)
        return
    for one in group.sandboxes:
        write_line(one.id)


@app.command("list")
def list_(
    state: Annotated[
        Literal["requested", "running", "paused", "ended"] | None, typer.Option(help="Only these.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Only members of this fork.")] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Sandboxes of the project, newest first; ended ones are shown for 30 days."""
    with connected(as_json) as client:
        source = client.sandboxes.list(state=state, group=group, newest_first=True)
        found = list(islice(source, limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (one.id, one.state, one.cause, one.template, one.group_id, one.ends_at) for one in found
    ]
    write_table(("sandbox", "state", "cause", "template", "fork", "ends at"), rows)


@app.command()
def show(sandbox_id: str, as_json: AsJson = False) -> None:
    """One sandbox."""
    with connected(as_json) as client:
        found = client.sandboxes.get(sandbox_id)
    _show(found, as_json)


@app.command(
    "exec", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}
)
def execute(
    sandbox_id: str,
    command: Annotated[list[str], typer.Argument(help="A program and its arguments.")],
    shell: Annotated[
        bool, typer.Option("--shell", help="Join the words and run them in /bin/sh.")
    ] = False,
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Send standard input, up to its end.")
    ] = False,
    env: Variables = None,
    timeout: Annotated[float, typer.Option(min=0.001, max=300, help="Seconds.")] = 30.0,
    output_bytes: Annotated[int, typer.Option(min=0, max=1 << 20, help="Kept of each stream.")] = 1
    << 20,
    as_json: AsJson = False,
) -> None:
    """Run a command to its end, with its output and exit status; 124 when its time was over.

    Options stand before the sandbox: `venus sandboxes exec --timeout 5 sbx_... ls -l`.
    """
    given = sys.stdin.buffer.read() if stdin else b""
    with connected(as_json) as client:
        ran = client.sandboxes.exec(
            sandbox_id,
            " ".join(command) if shell else command,
            stdin=base64.b64encode(given).decode(),
            env=_variables(env),
            timeout_s=timeout,
            output_bytes=output_bytes,
            encoding="base64",
        )
    if as_json:
        write_json(ran)
        return
    _write_streams(ran)
    raise typer.Exit(TIMED_OUT if ran.end == "timed_out" else max(ran.exit_code, 0))


@app.command("read")
def read_file(
    sandbox_id: str,
    path: Annotated[str, typer.Argument(help="A file inside.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it here.")] = None,
    as_json: AsJson = False,
) -> None:
    """A file inside, of at most 8 MiB, to standard output or a file."""
    with connected(as_json) as client:
        content = client.sandboxes.read(sandbox_id, path)
    if output is not None:
        output.write_bytes(content)
    elif as_json:
        write_json({"path": path, "content_base64": base64.b64encode(content).decode()})
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


@app.command("write")
def write_file(
    sandbox_id: str,
    path: Annotated[str, typer.Argument(help="A file inside.")],
    source: Annotated[Path | None, typer.Argument(help="Its content; else standard input.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replace a file inside by a file of this machine or by standard input."""
    content = sys.stdin.buffer.read() if source is None else source.read_bytes()
    with connected(as_json) as client:
        client.sandboxes.write(sandbox_id, path, content)
    if as_json:
        write_json({"path": path, "bytes": len(content)})
        return
    write_line(f"{len(content)} bytes to {path}")


@app.command()
def pause(sandbox_id: str, as_json: AsJson = False) -> None:
    """Stop all its processes; nothing inside is lost, and its lifetime stops."""
    with connected(as_json) as client:
        changed = client.sandboxes.pause(sandbox_id)
    _show(changed, as_json)


@app.command()
def resume(sandbox_id: str, as_json: AsJson = False) -> None:
    """Let it go on, with what was left of its lifetime."""
    with connected(as_json) as client:
        changed = client.sandboxes.resume(sandbox_id)
    _show(changed, as_json)


@app.command()
def timeout(
    sandbox_id: str,
    lifetime: Annotated[float, typer.Argument(min=0.001, max=86_400, help="Seconds from now on.")],
    as_json: AsJson = False,
) -> None:
    """Let it live for so long from now on; a paused one, from when it goes on."""
    with connected(as_json) as client:
        changed = client.sandboxes.set_timeout(sandbox_id, lifetime)
    _show(changed, as_json)


@app.command()
def kill(sandbox_ids: list[str], as_json: AsJson = False) -> None:
    """End sandboxes with everything inside."""
    with connected(as_json) as client:
        killed = [client.sandboxes.kill(one) for one in sandbox_ids]
    if as_json:
        write_json(killed)
        return
    for one in killed:
        write_line(f"{one.id}  {one.cause or one.state}")


@app.command()
def metrics(sandbox_id: str, as_json: AsJson = False) -> None:
    """What it costs now, in memory and CPU."""
    with connected(as_json) as client:
        found = client.sandboxes.metrics(sandbox_id)
    if as_json:
        write_json(found)
        return
    write_fields(
        {
            "private": _mib(found.private_bytes),
            "of them swapped": _mib(found.swapped_bytes),
            "shared": _mib(found.shared_bytes),
            "overhead": _mib(found.overhead_bytes),
            "declared": _mib(found.declared_bytes),
            "processes": found.processes,
            "cpu": None if found.cpu_s is None else f"{found.cpu_s:.2f} s",
        }
    )


@app.command()
def templates(as_json: AsJson = False) -> None:
    """What sandboxes can start from now."""
    with connected(as_json) as client:
        found = client.sandboxes.templates()
    if as_json:
        write_json(found)
        return
    rows = [
        (one.name, one.runtime, one.can.get("isolation"), one.nodes, _can(one.can)) for one in found
    ]
    write_table(("template", "runtime", "isolation", "nodes", "can"), rows)


def _can(can: dict[str, object]) -> str:
    return " ".join(sorted(name for name, value in can.items() if value is True))


def _variables(given: list[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in given or ()]
    for name, mark, _ in pairs:
        if not name or not mark:
            fail("a variable is given as NAME=VALUE", EXIT_USAGE)
    return {name: value for name, _, value in pairs}


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _write_streams(ran: "Executed") -> None:
    for text, stream in ((ran.stdout, sys.stdout), (ran.stderr, sys.stderr)):
        stream.buffer.write(base64.b64decode(text))
        stream.buffer.flush()
    if ran.is_truncated:
        sys.stderr.write(f"venus: {ran.truncated_bytes} bytes of output are not shown\n")


def _show(one: "Sandbox", as_json: bool) -> None:
    if as_json:
        write_json(one)
        return
    write_fields(
        {
            "sandbox": one.id,
            "fork": f"{one.group_id} ({one.member})",
            "template": one.template,
            "state": one.state,
            "cause": one.cause,
            "detail": one.detail or None,
            "variables": " ".join(one.env_names) or None,
            "created at": one.created_at,
            "started at": one.started_at,
            "ends at": one.ends_at,
            "left of its lifetime": None if one.left_s is None else f"{one.left_s:.0f} s",
            "ended at": one.ended_at,
        }
    )
