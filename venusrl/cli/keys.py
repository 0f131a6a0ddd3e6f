"""`venus keys`: make, list, rotate and delete API keys; they need a key with the role admin."""

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from venusrl.cli.output import AsJson, Limit, connected, write_json, write_line, write_table

if TYPE_CHECKING:
    from venusrl.models.tenancy import KeyCreated

app = typer.Typer(no_args_is_help=True)

ROLES = Literal["viewer", "developer", "admin", "owner"]


@app.command()
def create(
    name: str,
    project: Annotated[str, typer.Option(help="Id of the project that the key works in.")],
    role: Annotated[ROLES, typer.Option(help="What it may do.")] = "developer",
    expires: Annotated[
        datetime | None, typer.Option(help="When it ends, UTC; never when not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. Its secret is shown now and never again."""
    from datetime import UTC

    end = None if expires is None else expires.replace(tzinfo=UTC)
    with connected(as_json) as client:
        key = client.keys.create(name, project, role=role, expires_at=end)
    _show(key, as_json)


@app.command("list")
def list_(
    organization: Annotated[
        str | None, typer.Option(help="Only the installation's admin key names it.")
    ] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Keys of the organization or project, without secrets."""
    with connected(as_json) as client:
        found = list(islice(client.keys.list(organization), limit))
    if as_json:
        write_json(found)
        return
    rows = [
        (one.id, one.name, one.role, one.project_id, one.prefix,
         None if one.expires_at is None else f"{one.expires_at:%Y-%m-%d %H:%M}",
         "revoked" if one.revoked_at is not None else "")
        for one in found
    ]  # fmt: skip
    write_table(("key", "name", "role", "project", "prefix", "expires", "state"), rows)


@app.command()
def rotate(
    key_id: str,
    grace: Annotated[
        int, typer.Option(min=0, max=7 * 86_400, help="Seconds that the old key goes on working.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Replace a key by one with the same name, role and scope. The new secret is shown once."""
    with connected(as_json) as client:
        key = client.keys.rotate(key_id, grace_s=grace)
    _show(key, as_json)


@app.command()
def delete(key_id: str, as_json: AsJson = False) -> None:
    """Revoke a key at once."""
    with connected(as_json) as client:
        client.keys.revoke(key_id)
    if as_json:
        write_json({"id": key_id, "state": "revoked"})
        return
    write_line(f"{key_id} is revoked")


def _show(key: "KeyCreated", as_json: bool) -> None:
    if as_json:
        write_json(key)
        return
    write_line(f"{key.id}  {key.role} of {key.project_id}")
    write_line(key.secret)
