"""`python -m workers.webhooks.main`: deliver what is due, then end.

Exit status 0: nothing is due any more, or the time is over. Several of these at once are harmless.
"""

import asyncio
import sys
from typing import Final

from domain.errors import StoreUnavailable
from infra import failpoints
from infra.clock import SystemClock
from infra.logging import configure, get_logger
from infra.settings import Settings
from infra.webhook_key import installation_key
from stores.system import deliveries
from stores.unit_of_work import Database
from workers.webhooks.delivering import Delivering
from workers.webhooks.sender import Sender

CONNECTIONS: Final = 4
"""Of the database; marking is short and sending holds none."""

EXIT_AGAIN: Final = 75
"""The database was away; what was claimed is free again when its claim ends."""


async def run(settings: Settings) -> int:
    """Deliver once; the exit status."""
    database = Database(settings.database_url, CONNECTIONS)
    clock = SystemClock()
    sender = Sender(settings.webhooks, installation_key(settings), clock)
    status = 0
    try:
        tries = await Delivering(database, sender, settings.webhooks, clock).run()
        async with database.begin() as connection:
            await deliveries.purge(connection)
        get_logger().info("webhooks.delivered", tries=tries)
    except* StoreUnavailable as errors:
        get_logger().warning("database.away", cause=str(errors.exceptions[0]))
        status = EXIT_AGAIN
    finally:
        await sender.close()
        await database.close()
    return status


def main() -> None:
    """Entry of the process."""
    settings = Settings.from_env()
    configure("deliver", settings.log_level)
    failpoints.configure("deliver")
    sys.exit(asyncio.run(run(settings)))


if __name__ == "__main__":
    main()
