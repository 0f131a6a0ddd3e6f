"""`venus`: the command line. Everything goes through `venusrl.Client`; `--json` is for programs.

Exit status: 0 it is as asked, 1 refused or failed, 2 usage, 3 the API cannot be reached, 130
interrupted.
"""


def main() -> None:
    """Entry point of the installed script."""
    from venusrl.cli.app import app

    app()
