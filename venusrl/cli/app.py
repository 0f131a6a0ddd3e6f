"""The root of the command tree."""

from typing import Final

import typer

from venusrl.cli import checkpoints, environments, jobs, rollouts, server

HELP: Final = """Reinforcement learning for language models.

VENUS_API_URL and VENUS_API_KEY name the platform and your key.
"""

app = typer.Typer(
    name="venus",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("up")(server.up)
app.command("doctor")(server.doctor)
app.add_typer(jobs.app, name="jobs", help="Submit, follow and steer jobs.")
app.add_typer(rollouts.app, name="rollouts", help="List, look at and export rollouts.")
app.add_typer(environments.app, name="env", help="Write, check, try, upload and list environments.")
app.add_typer(checkpoints.app, name="checkpoints", help="List, download and look at checkpoints.")
