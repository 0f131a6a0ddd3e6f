"""`venus webhooks`: send events of the project to an address, and see what became of them."""

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from venusrl.cli.output import (
    AsJson,
    Limit,
    connected,
    write_fields,
    write_json,
    write_line,
    write_table,
)

if TYPE_CHECKING:
    from venusrl.models.webhooks import Delivery, Webhook, WebhookCreated

app = typer.Typer(no_args_is_help=True)

Types = Annotated[
    list[str] | None,
    typer.Option("--type", help="A type, `job.state`, or a kind, `job.*`; may be repeated."),
]
Text = Annotated[str | None, typer.Option(help="For people.")]


@app.command()
def create(
    url: str, type_: Types = None, description: Text = None, as_json: AsJson = False
) -> None:
    """Send events to an address. The secret that signs them is shown now and never again."""
    with connected(as_json) as client:
        made = client.webhooks.create(url, types=type_ or ["*"], description=description or "")
    _show_secret(made, as_json)


@app.command("list")
def list_(limit: Limit = 100, as_json: AsJson = False) -> None:
    """Webhooks of the project."""
    with connected(as_json) as client:
        found = list(islice(client.webhooks.list(), limit))
    if as_json:
        write_json(found)
        return
    rows = [(one.id, _state(one), " ".join(one.types), one.url, one.description) for one in found]
    write_table(("webhook", "state", "types", "url", "description"), rows)


@app.command()
def get(webhook_id: str, as_json: AsJson = False) -> None:
    """One webhook."""
    with connected(as_json) as client:
        found = client.webhooks.get(webhook_id)
    _show(found, as_json)


@app.command()
def update(
    webhook_id: str,
    url: Annotated[str | None, typer.Option(help="Another address.")] = None,
    type_: Types = None,
    description: Text = None,
    active: Annotated[
        bool | None, typer.Option("--on/--off", help="Switch it on again, or off.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change address, types or description; switch it on or off."""
    with connected(as_json) as client:
        changed = client.webhooks.update(
            webhook_id, url=url, types=type_, description=description, active=active
        )
    _show(changed, as_json)


@app.command()
def delete(webhook_id: str, as_json: AsJson = False) -> None:
    """Delete a webhook with its deliveries."""
    with connected(as_json) as client:
        client.webhooks.delete(webhook_id)
    if as_json:
        write_json({"id": webhook_id, "state": "deleted"})
        return
    write_line(f"{webhook_id} is deleted")


@app.command()
def rotate(
    webhook_id: str,
    grace: Annotated[
        int, typer.Option(min=0, max=7 * 86_400, help="Seconds for which the old secret signs too.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """A new secret, shown once."""
    with connected(as_json) as client:
        made = client.webhooks.rotate(webhook_id, grace_s=grace)
    _show_secret(made, as_json)


@app.command("test")
def send_test(webhook_id: str, as_json: AsJson = False) -> None:
    """Send an event `webhook.test`; `deliveries` shows what became of it."""
    with connected(as_json) as client:
        _show_delivery(client.webhooks.test(webhook_id), as_json)


@app.command()
def deliveries(
    webhook_id: str,
    state: Annotated[
        Literal["pending", "delivered", "failed"] | None, typer.Option(help="Only these.")
    ] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only events of this type.")] = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """Deliveries, newest first."""
    with connected(as_json) as client:
        source = client.webhooks.deliveries(webhook_id, state=state, type=type_, newest_first=True)
        found = list(islice(source, limit))
    if as_json:
        write_json(found)
        return
    rows = [(one.id, one.state, one.tries, _last(one), one.type, one.job_id) for one in found]
    write_table(("delivery", "state", "tries", "last", "type", "job"), rows)


@app.command()
def redeliver(webhook_id: str, delivery_id: str, as_json: AsJson = False) -> None:
    """Send an event again, with the id that it had."""
    with connected(as_json) as client:
        _show_delivery(client.webhooks.redeliver(webhook_id, delivery_id), as_json)


def _state(one: "Webhook") -> str:
    if not one.active:
        return "off" if one.disabled_at is None else "disabled"
    return "on" if one.failing_since is None else "failing"


def _last(one: "Delivery") -> str | None:
    if not one.attempts:
        return None
    last = one.attempts[-1]
    return last.code if last.status is None else f"{last.code} {last.status}"


def _show(one: "Webhook", as_json: bool) -> None:
    if as_json:
        write_json(one)
        return
    write_fields(
        {
            "webhook": one.id,
            "state": _state(one),
            "url": one.url,
            "types": " ".join(one.types),
            "description": one.description or None,
            "failing since": one.failing_since,
            "disabled at": one.disabled_at,
        }
    )


def _show_secret(one: "WebhookCreated", as_json: bool) -> None:
    if as_json:
        write_json(one)
        return
    write_line(f"{one.id}  {one.url}")
    write_line(one.secret)


def _show_delivery(one: "Delivery", as_json: bool) -> None:
    if as_json:
        write_json(one)
        return
    write_line(f"{one.id}  {one.type}  {one.state}  {one.event_id}")
