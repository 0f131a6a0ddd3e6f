"""Turns in engine slots and the pages under them: who enters, who leaves, whose pages grow."""

from typing import Final

from domain.engine import RequestId
from kv.retraction import loser
from workers.rollout.embedded.counters import Counters
from workers.rollout.embedded.keys import Keys
from workers.rollout.embedded.pages.tree import EvictReason
from workers.rollout.embedded.rows import Rows
from workers.rollout.embedded.sampling import draw_noise
from workers.rollout.embedded.turns import Retractable, Running, Ticket

LOADING_WAIT_S: Final = 0.005
"""Wait for pages on their way when no row can do anything else."""


class Occupancy:
    """Rows, their keys, and the queue that a turn without a slot goes back to."""

    def __init__(self, rows: Rows, keys: Keys, counters: Counters) -> None:
        self.rows = rows
        self.keys = keys
        self.counters = counters
        self.waiting: dict[RequestId, Ticket] = {}

    @property
    def active(self) -> int:
        """Turns in engine slots."""
        return len(self.rows.running)

    @property
    def parked(self) -> list[Running]:
        """Turns that lost their slot and wait."""
        return [one.parked.running for one in self.waiting.values() if one.parked is not None]

    def enter(self, ticket: Ticket, served_sha: str) -> None:
        """A waiting turn gets a row, a new one or one that had lost it."""
        del self.waiting[ticket.request.request_id]
        if ticket.parked is not None:
            gained = self.keys.resume(ticket.parked)
            row = self.rows.restore(ticket.parked)
            ticket.parked = None
            self._count_found(self.rows.running[row], gained)
            return
        running = self.keys.start(ticket, served_sha)
        sampling = ticket.request.sampling
        self.rows.start(running, draw_noise(sampling.seed, sampling.max_tokens).numpy())
        self._count_found(running, running.lease.length)

    def find(self, row: int) -> None:
        """The table has more of this row's keys than the row knows: others computed or fetched them."""
        running, known = self.rows.running[row], int(self.rows.kv_length[row])
        self.rows.follow_lease(row)
        self._count_found(running, running.lease.length - known)

    def collect(self) -> None:
        """Rows whose pages came, or did not, go on."""
        loading = [row for row, one in enumerate(self.rows.running) if one.is_loading]
        self.keys.collect(LOADING_WAIT_S if 0 < len(loading) == self.active else 0.0)
        for row in loading:
            running = self.rows.running[row]
            if any(node.is_coming for node in running.lease.nodes):
                continue
            running.is_loading = False
            self.find(row)

    def park(self, running: Running) -> None:
        """Take the slot of a turn that goes on later; its pages may go when room is needed."""
        row = self.rows.running.index(running)
        sampled = self.rows.saved(row)
        self.keys.park(sampled, self.unknown(row))
        running.ticket.parked = sampled
        self.rows.stop(row)
        self.waiting[running.ticket.request.request_id] = running.ticket

    def grow(self, running: Running, tokens: int, reason: EvictReason) -> bool:
        """Have pages for so many tokens; the worst turns give theirs up, at last this one itself."""
        while not self.keys.grow(running, tokens, reason):
            rows = self.rows
            candidates = [
                Retractable(
                    one,
                    one.ticket.rank,
                    int(rows.length[row] - rows.prompt_length[row]),
                    int(rows.prompt_length[row]),
                    one.ticket.arrival,
                )
                for row, one in enumerate(rows.running)
            ]
            worst = loser(candidates, self.keys.admission.rules.queue).running
            self.park(worst)
            self.counters.retractions += 1
            if worst is running:
                return False
        return True

    def unknown(self, row: int) -> list[int]:
        """Tokens that have keys and that the page table does not know of."""
        rows, known = self.rows, self.rows.running[row].lease.length
        tokens: list[int] = rows.tokens[row, known : rows.kv_length[row]].tolist()
        return tokens

    def _count_found(self, running: Running, tokens: int) -> None:
        """So many tokens were not computed for it just now: cached ones of its prompt, or got back."""
        cached = running.find(running.lease.length)
        self.counters.cached_tokens += cached
        self.keys.restored_tokens += max(tokens - cached, 0)

    def fill(self, row: int) -> None:
        running = self.rows.running[row]
        if not running.is_loading and self.keys.fill(running.lease, self.unknown(row)):
            self.rows.follow_lease(row)
