"""The root group: what this machine refuses to any command is a message and an exit status."""

from typing import Any, Final

from typer.core import TyperGroup

from venusrl.cli.output import EXIT_REFUSED, fail

AS_JSON: Final = "venusrl.as_json"


class Guarded(TyperGroup):
    """Commands whose files may be missing, forbidden, folders, or on a full disk."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Note whether the command, whose own arguments these are too, shall answer as JSON."""
        ctx.meta[AS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an OSError ends it with 1, as JSON where the command was asked for it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # whoever read standard output has gone: click ends quietly
        except OSError as error:
            fail(_said(error), EXIT_REFUSED, ctx.meta[AS_JSON])


def _said(error: OSError) -> str:
    """The file and what is wrong with it, without the number."""
    if error.filename is None or error.strerror is None:
        return str(error)
    named = error.filename2 or error.filename
    return f"{named}: {error.strerror}"
