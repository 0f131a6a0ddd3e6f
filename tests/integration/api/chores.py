"""Doing what the gateway asked of chores, in this process instead of a worker's."""

import asyncio

from stores import tables as t
from tests.integration.api.world import World
from workers.chores import main


def do_chores(world: World, *kinds: str) -> int:
    """Run every pending operation of these kinds to its end; how many there were."""
    pending = [
        row.id for row in world.rows(t.operation) if row.state == "pending" and row.kind in kinds
    ]
    for operation_id in pending:
        assert asyncio.run(main.run(world.settings, operation_id)) == 0
    return len(pending)
