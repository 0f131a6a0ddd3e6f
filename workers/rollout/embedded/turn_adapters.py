"""Which turn runs with which adapter, and under which identity: the core's view of the shelf."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from domain.engine import GenRequest, served_sha
from workers.rollout.embedded.adapters import AdaptedRows, Grouping, PackedAdapter, by_adapter
from workers.rollout.embedded.shelf import AdapterShelf, Key, LoadedAdapter
from workers.rollout.embedded.turns import Running, Ticket


@dataclass(frozen=True, slots=True)
class SavedAdapters:
    """What was loaded, and what the turns of that time (by arrival) held."""

    loaded: Mapping[Key, LoadedAdapter]
    held: Mapping[int, LoadedAdapter | None]


class TurnAdapters:
    """The loaded adapters and the turns that hold them."""

    def __init__(self) -> None:
        self.shelf = AdapterShelf()
        self._grouping = Grouping()

    def find(self, request: GenRequest) -> LoadedAdapter | None:
        """The adapter that a request asks for. Raises EngineRefused when it is not here."""
        return self.shelf.find(request.tenant, request.adapter)

    def sha(self, ticket: Ticket, base: str) -> str:
        """Identity of the weights that make this turn's tokens now."""
        return served_sha(base, None if ticket.adapter is None else ticket.adapter.sha)

    def shas(self, base: str) -> frozenset[str]:
        """Identities of all that can be asked for."""
        return frozenset(served_sha(base, sha) for sha in (None, *self.shelf.shas()))

    def versions(self, turns: Iterable[Running], base: int) -> list[int]:
        """Policy version of what these turns sample now: their adapter's, else the base's."""
        held = (one.ticket.adapter for one in turns)
        return [base if adapter is None else adapter.version for adapter in held]

    def of_step(self, turns: Iterable[Running], device: torch.device) -> tuple[AdaptedRows, ...]:
        """Rows of a decode step of these turns."""
        return self._grouping.groups(_packed(turns), device)

    def of_chunks(self, turns: Iterable[Running], device: torch.device) -> tuple[AdaptedRows, ...]:
        """Rows of chunks of these turns; nearly every batch of chunks is another, so no stack is made."""
        return by_adapter(_packed(turns), device)

    def swap(self, adapter: LoadedAdapter, tickets: Iterable[Ticket]) -> None:
        """Serve this version from the next token on, to all turns that pinned none."""
        self.shelf.put(adapter)
        for ticket in tickets:
            ref, held = ticket.request.adapter, ticket.adapter
            if ref is not None and ref.sha is None and held is not None and held.key == adapter.key:
                ticket.adapter = adapter

    def saved(self, tickets: Iterable[Ticket]) -> SavedAdapters:
        """What `restore` needs to undo any number of swaps."""
        held = {ticket.arrival: ticket.adapter for ticket in tickets}
        return SavedAdapters(self.shelf.saved(), held)

    def restore(self, saved: SavedAdapters, tickets: Iterable[Ticket]) -> list[Ticket]:
        """Undo swaps; returns the turns, accepted since, that want what is withdrawn and nothing else."""
        self.shelf.restore(saved.loaded)
        lost: list[Ticket] = []
        for ticket in tickets:
            ref, adapter = ticket.request.adapter, ticket.adapter
            if ticket.arrival in saved.held:
                ticket.adapter = saved.held[ticket.arrival]
            elif ref is not None and adapter is not None:
                before = self.shelf.newest(adapter.key)
                ticket.adapter = before
                if before is None or ref.sha not in (None, before.sha):
                    lost.append(ticket)
        return lost


def _packed(turns: Iterable[Running]) -> list[PackedAdapter | None]:
    held = (one.ticket.adapter for one in turns)
    return [None if one is None else one.packed for one in held]
