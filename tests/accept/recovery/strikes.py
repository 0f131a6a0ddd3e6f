"""Finds a cell's victim among the stack's own processes, and strikes it.

The process at the failpoint sleeps there meanwhile. A stopped process goes on only after somebody
else holds what it held: a higher term, or a higher epoch of its lease.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.accept.recovery.cells import OWN_VICTIM, Cell, Place, Strike, Victim
from tests.support import processes
from tests.support.processes import Process
from tests.support.stack import Stack
from tests.support.waiting import wait_until

FOUND_WITHIN_S: Final = 30.0
"""A victim that was just replaced comes back within this."""

SUPERSEDED_WITHIN_S: Final = 60.0
"""A stopped host whose keeper lives is found by its missing progress, which takes longest."""

FLUSHED_FOR_S: Final = 2.0
"""The broker is flushed so long: whatever message waits in it meanwhile is lost."""

KIND: Final = {Victim.ENGINE: "engine", Victim.TRAINER: "trainer", Victim.NODE: "node"}


@dataclass(frozen=True, slots=True)
class Struck:
    """What a strike hit, and what must end it: `resume` lets stopped processes go on."""

    victims: tuple[Process, ...] = ()
    is_superseded: Callable[[], bool] = bool

    def resume(self) -> None:
        """After somebody else took over, wake the stopped ones."""
        try:
            wait_until(self.is_superseded, SUPERSEDED_WITHIN_S, "nobody took over")
        finally:
            for victim in self.victims:
                victim.send(signal.SIGCONT)


def strike(stack: Stack, cell: Cell, fired: dict[str, Any]) -> Struck | None:
    """Do what the cell says; for SIGSTOP the answer says how to go on."""
    match cell.strike:
        case Strike.KILL:
            _kill(find(stack, cell, fired))
        case Strike.STOP:
            return _stop(stack, cell, (find(stack, cell, fired),))
        case Strike.STOP_WITH_KEEPER:
            host = find(stack, cell, fired)
            return _stop(stack, cell, (*_keepers(stack, host), host))
        case Strike.FLUSH:
            _flush(stack)
        case Strike.POSTGRES:
            postmaster = stack.named("postgres")
            assert postmaster is not None, "the supervisor runs Postgres"
            _kill(postmaster)
    return None


def find(stack: Stack, cell: Cell, fired: dict[str, Any]) -> Process:
    """The victim: the very process at the failpoint if it is of that kind, else one of its kind."""
    assert cell.victim is not None
    if OWN_VICTIM[cell.failpoint.place] is cell.victim:
        found = [one for one in stack.processes() if one.pid == fired["pid"]]
        assert found, f"pid {fired['pid']} at {cell.failpoint.name} is none of this stack"
        return found[0]
    victim = wait_until(
        lambda: _any(stack, cell, fired), FOUND_WITHIN_S, f"there is no {cell.victim}"
    )
    assert victim is not None
    return victim


def _any(stack: Stack, cell: Cell, fired: dict[str, Any]) -> Process | None:
    found = stack.processes()
    match cell.victim:
        case Victim.LEADER:
            return stack.leader()
        case Victim.KEEPER:
            candidates = processes.keeper_main(found, stack.supervisor)
        case Victim.POOL_CHILD:
            candidates = _pool_children(found, cell, fired)
        case Victim.ENVIRONMENT:
            candidates = processes.runners(found)
        case Victim.ENGINE | Victim.TRAINER | Victim.NODE:
            candidates = processes.hosts(found, KIND[cell.victim])
        case _:
            raise AssertionError(f"{cell.victim} dies at its own failpoints only")
    return candidates[0] if candidates else None


def _pool_children(found: list[Process], cell: Cell, fired: dict[str, Any]) -> list[Process]:
    """The keeper of the host at the failpoint, else of the trainer, of which there is one."""
    here = [one for one in found if one.pid == fired["pid"]]
    is_host = cell.failpoint.place in (Place.ENGINE, Place.TRAINER, Place.NODE)
    host = here if is_host and here else processes.hosts(found, "trainer")
    return [child for one in host for child in processes.keeper_of(found, one)]


def _keepers(stack: Stack, host: Process) -> list[Process]:
    return processes.keeper_of(stack.processes(), host)


def _kill(victim: Process) -> None:
    assert victim.send(signal.SIGKILL), f"{victim} was gone"


def _stop(stack: Stack, cell: Cell, victims: tuple[Process, ...]) -> Struck:
    """Freeze them; keepers first, so that none reports its host."""
    look = _terms if cell.victim is Victim.LEADER else _epochs
    held, was_unclaimed = look(stack), bool(_unclaimed(stack))
    for victim in victims:
        assert victim.send(signal.SIGSTOP), f"{victim} was gone"

    def is_superseded() -> bool:
        # A keeper frozen before its claim holds nothing: another one claims at the same epoch.
        return look(stack) > held or (was_unclaimed and not _unclaimed(stack))

    return Struck(victims, is_superseded)


def _terms(stack: Stack) -> int:
    return int(stack.query("select coalesce(max(term), 0) from leadership")[0][0])


def _epochs(stack: Stack) -> int:
    """Rises when any lease is taken from whoever holds it; nothing else dies meanwhile."""
    return int(stack.query("select coalesce(sum(epoch), 0) from host_lease")[0][0])


def _unclaimed(stack: Stack) -> int:
    """Leases that wait for a keeper."""
    rows = stack.query("select 1 from host_lease where desired = 'up' and owner is null")
    return len(rows)


def _flush(stack: Stack) -> None:
    """Lose messages while somebody sends one: a host that was killed is to be woken anew."""
    engines = processes.hosts(stack.processes(), "engine")
    if engines:
        _kill(engines[0])
    end = time.monotonic() + FLUSHED_FOR_S

    def is_over() -> bool:
        stack.flush_broker()
        return time.monotonic() > end

    wait_until(is_over, FOUND_WITHIN_S)
