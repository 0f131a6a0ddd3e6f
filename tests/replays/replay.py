"""Replays a list of (time, event) through a fresh coordinator with all checks on."""

from collections.abc import Sequence

from domain.commands import Command
from domain.events import Event
from domain.plan import Pool
from scheduler.core.coordinator import Coordinator

Record = tuple[float, Event]


def replay(pool: Pool, records: Sequence[Record]) -> tuple[Coordinator, list[Command]]:
    """All commands in order; refused events are skipped as the shell skips them."""
    core = Coordinator(pool, checking=True)
    commands: list[Command] = []
    for now, event in records:
        if core.accept(event) is None:
            commands += core.step(now, event)
    return core, commands
