"""The root of the command tree."""

from typing import Final

import typer

from venusrl.cli import (
    accounts,
    checkpoints,
    datasets,
    environments,
    jobs,
    keys,
    models,
    plans,
    rollouts,
    sandboxes,
    secrets,
    server,
    webhooks,
)
from venusrl.cli.guard import Guarded

HELP: Final = """Reinforcement learning for language models.

VENUS_API_URL and VENUS_API_KEY name the platform and your key.
"""

EPILOG: Final = (
    "Exit status: 0 as asked, 1 refused or failed, 2 usage, 3 the API cannot be reached, "
    "130 interrupted."
)

app = typer.Typer(
    name="venus",
    cls=Guarded,
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("up")(server.up)
app.command("doctor")(server.doctor)
app.command("plan")(plans.plan)
jobs.app.command("whatif")(plans.whatif)
app.add_typer(jobs.app, name="jobs", help="Submit, follow and steer jobs.")
app.add_typer(rollouts.app, name="rollouts", help="List, look at and export rollouts.")
app.add_typer(environments.app, name="env", help="Write, check, try, upload and list environments.")
app.add_typer(datasets.app, name="datasets", help="Upload, list and look at datasets.")
app.add_typer(models.app, name="models", help="List, add and delete models.")
app.add_typer(checkpoints.app, name="checkpoints", help="List, download and look at checkpoints.")
app.add_typer(sandboxes.app, name="sandboxes", help="Start sandboxes and run commands in them.")
app.add_typer(secrets.app, name="secrets", help="Write, list and delete secrets.")
app.add_typer(keys.app, name="keys", help="Make, list, rotate and delete API keys.")
app.add_typer(webhooks.app, name="webhooks", help="Send events to an address.")
app.command("audit")(accounts.audit)
app.command("usage")(accounts.usage)
