"""Running turns that would give up their slots to better ones, and what that frees.

A hypothesis: nobody loses a slot before it is known that what is freed suffices for the better turn.
Inside a class a turn takes another's slot only, where pages are left; a turn of a better class also takes
the room of as many as it needs. What they computed may go then, so a mere order inside a class is not
worth it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kv.ranks import class_of
from workers.rollout.embedded.pages.nodes import Node
from workers.rollout.embedded.turns import Running, Ticket


@dataclass(frozen=True, slots=True)
class Yielding:
    """Turns that would go, worst first."""

    turns: tuple[Running, ...] = ()

    def and_(self, running: Running) -> "Yielding":
        """This turn would go as well."""
        return Yielding((*self.turns, running))

    def locks(self) -> dict[int, tuple[Node, int]]:
        """By node: how many of its locks would be given up."""
        found: dict[int, tuple[Node, int]] = {}
        for running in self.turns:
            for node in running.lease.nodes:
                found[node.key] = node, found.get(node.key, (node, 0))[1] + 1
        return found

    def rest(self, running: Sequence[Running]) -> list[Running]:
        """Those that would stay."""
        going = {id(one) for one in self.turns}
        return [one for one in running if id(one) not in going]

    def next_for(
        self, ticket: Ticket, running: Sequence[Running], *, has_slot: bool
    ) -> Running | None:
        """Who goes next so that this turn runs: the worst of its tenant, if it is worse.

        `has_slot` says that a slot is left and pages are not.
        """
        tenant = ticket.request.tenant
        others = [one for one in self.rest(running) if one.ticket.request.tenant == tenant]
        worst = max(others, key=lambda one: one.ticket.order, default=None)
        if worst is None or worst.ticket.rank <= ticket.rank:
            return None
        is_worse_class = class_of(worst.ticket.rank) > class_of(ticket.rank)
        return worst if is_worse_class or not has_slot else None


NOBODY = Yielding()
"""All turns keep their slots."""
