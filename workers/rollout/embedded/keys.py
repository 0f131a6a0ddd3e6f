"""The keys of one engine: arena, page table, outer tiers, and who gets room. The core asks, nothing waits."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from domain.engine import GenRequest, KvMode
from domain.ids import RolloutId
from domain.plan import TenantShare
from kv.ranks import RankClass, class_of
from kv.rules import RANKED, Gaps, KvRules
from workers.rollout.embedded.admission import ANY_TOOL, Admission
from workers.rollout.embedded.arena import KvArena
from workers.rollout.embedded.pages.nodes import (
    PAGE_TOKENS,
    Lease,
    Namespace,
    Node,
    digests_of,
    usable,
)
from workers.rollout.embedded.pages.table import PageTable
from workers.rollout.embedded.pages.tree import EvictReason
from workers.rollout.embedded.shares import SlotShares
from workers.rollout.embedded.tiers.outer import OuterTiers
from workers.rollout.embedded.tiers.stores import NO_TIERS, TierSizes
from workers.rollout.embedded.turns import Running, Sampled, Ticket

REMEMBERED_MAX: Final = 4096
"""Rollouts of which the engine remembers how long to keep their pages."""

RATE_SMOOTHING: Final = 0.1
"""Of the measured time of computing a page: it follows a change within some ten chunks."""


@dataclass(frozen=True, slots=True)
class KeySizes:
    """Pages on the device and outside, the rules by which they are kept, weights of who shares them."""

    pages: int
    tiers: TierSizes = NO_TIERS
    rules: KvRules = RANKED
    tenants: tuple[TenantShare, ...] = ()


class Keys:
    """Owned by the thread of the core."""

    def __init__(self, arena: KvArena, sizes: KeySizes, clock: Callable[[], float]) -> None:
        self.arena = arena
        self.clock = clock
        self.table = PageTable(arena.pages, sizes.rules.eviction, arena.copy)
        self.table.tree.demotes = sizes.rules.demotion
        self.admission = Admission(self.table, sizes.rules, shares=SlotShares(sizes.tenants))
        has_tiers = sizes.tiers.host_pages or sizes.tiers.disk_pages
        self.tiers = OuterTiers(arena, self.table, sizes.tiers, clock) if has_tiers else None
        self.wait_s: dict[RankClass, float] = dict.fromkeys(RankClass, 0.0)
        self.starts: dict[RankClass, int] = dict.fromkeys(RankClass, 0)
        self.recomputed_tokens = 0
        self.restored_tokens = 0
        self._kept_until: dict[RolloutId, float] = {}

    def prepare(self, ticket: Ticket, weights_sha: str) -> None:
        """Note what a waiting turn would share with others."""
        if ticket.digests is None and ticket.parked is None:
            tokens = ticket.request.token_ids[:-1]
            ticket.digests = digests_of(namespace_of(ticket.request, weights_sha), tokens)

    def hold(self, tickets: Iterable[Ticket]) -> list[list[Node]]:
        """Lock what is there of each of these turns until `let_go`: none of it is evicted while those before
        it take their room."""
        now = self.clock()
        return [self._held(ticket, now) for ticket in tickets]

    def let_go(self, held: Sequence[Node]) -> None:
        """The turn itself locks its pages next; before, or its own last page would look like another's."""
        self.table.tree.unlock(held, self.clock())

    def start(self, ticket: Ticket, weights_sha: str) -> Running:
        """Lock what is there of a new turn's context, and have the rest of it fetched."""
        now, request = self.clock(), ticket.request
        self.prepare(ticket, weights_sha)
        self._note_start(ticket, now)
        namespace = namespace_of(request, weights_sha)
        known = self.table.tree.trajectories.get(request.rollout_id)
        if known is not None and known.path and not known.leases:
            self.admission.gaps.add(ANY_TOOL, ticket.accepted_s - known.path[-1].last_used)
        lineage = f"{len(request.tenant)}:{request.tenant}:{request.adapter or ''}"
        lease = self.table.open(request.rollout_id, namespace, request.token_ids, now, lineage)
        lease.trajectory.rank = ticket.rank
        if lease.is_private:
            running = Running(ticket, now, weights_sha, lease, ())
        else:
            running = Running(ticket, now, weights_sha, lease, ticket.digests or ())
            running.known_tail = self.table.memory.tail(
                request.rollout_id, namespace, running.digests, request.token_ids[:-1]
            )
        self._fetch(running)
        return running

    def resume(self, sampled: Sampled) -> int:
        """Lock what is left of a turn that lost its slot; returns the tokens that others computed."""
        running, now = sampled.running, self.clock()
        self._note_start(running.ticket, now)
        self.table.resume(running.lease, now)
        gained = self.table.extend(running.lease, running.digests, now)
        self._fetch(running)
        return gained

    def park(self, sampled: Sampled, tokens: Sequence[int]) -> None:
        """A turn loses its slot; `tokens` have keys that the table does not know yet."""
        running, now = sampled.running, self.clock()
        lease = running.lease
        self.table.fill(lease, tokens, now)
        running.known_tokens = max(running.known_tokens, lease.length)
        running.reach(lease.length)
        if not lease.is_private:
            context: list[int] = sampled.tokens[:-1].tolist()
            running.digests = digests_of(lease.namespace, context)
        running.is_loading = False
        self.table.park(lease, now)
        running.ticket.waiting_since_s = now

    def close(self, running: Running, tokens: Sequence[int], keep: bool) -> None:
        """A turn ended; `tokens` have keys that the table does not know yet."""
        now, lease = self.clock(), running.lease
        rollout_id = lease.trajectory.rollout_id
        if keep:
            self.table.fill(lease, tokens, now)
            if not lease.is_private:
                self.table.memory.note_tail(lease)
        lease.trajectory.kept_until = self._kept_until.get(rollout_id, 0.0)
        if keep and self.admission.rules.gaps is Gaps.TTL:
            lease.trajectory.kept_until = now + self.admission.ttl_s(len(lease.nodes))
        self.table.close(lease, keep, now)

    def poison(self, running: Running) -> None:
        """A turn computed what is not a number: its own pages are zeroed and found by nobody."""
        lease = running.lease
        found = {node.key for node in lease.nodes[: lease.found] if node.digest is not None}
        own = [node for node in lease.nodes if node.locks == 1 and node.key not in found]
        for node in own:
            if node.digest is not None:
                self.table.memory.forget(node.digest)
            self.table.tree.hide(node)
            node.tokens = ()
        self.arena.clear([node.page for node in own if node.page is not None])

    def share(self, running: Running) -> bool:
        """Take over pages that another turn computed meanwhile; whether there were any."""
        return self.table.extend(running.lease, running.digests, self.clock()) > 0

    def grow(self, running: Running, tokens: int, reason: EvictReason) -> bool:
        """Have pages for so many tokens."""
        return self.table.grow(running.lease, tokens, reason, self.clock())

    def fill(self, lease: Lease, tokens: Sequence[int]) -> bool:
        """These tokens have keys now; whether the block table changed."""
        return self.table.fill(lease, tokens, self.clock())

    def collect(self, wait_s: float) -> None:
        """Send off what left the device, take in what came."""
        if self.tiers is not None and self.tiers.is_open:
            self.tiers.flush()
            self.tiers.collect(wait_s)

    def count_prefill(self, running: Running, start: int, end: int) -> None:
        """Keys of these positions are computed now; asked before the table knows of them.

        Those are recomputed whose keys this engine had before, for the same tenant at the same weights:
        in a whole page of whoever, in the last page of the same rollout, or in this turn itself.
        """
        running.reach(end)
        fresh = min(max(start, running.known_tokens), end)
        self.recomputed_tokens += fresh - start
        while fresh < end:
            place = fresh // PAGE_TOKENS
            stop = min(end, (place + 1) * PAGE_TOKENS)
            if place < len(running.digests) and running.digests[place] in self.table.memory:
                self.recomputed_tokens += stop - fresh
            else:
                tail = running.known_tail
                self.recomputed_tokens += max(min(stop, tail.stop) - max(fresh, tail.start), 0)
            fresh = stop

    def note_prefill(self, tokens: int, seconds: float) -> None:
        """Measured: computing so many tokens took so long."""
        page_s = seconds / tokens * PAGE_TOKENS
        known_s = self.admission.page_s or page_s
        self.admission.page_s = known_s + RATE_SMOOTHING * (page_s - known_s)
        if self.tiers is not None:
            self.tiers.compute_s = self.admission.page_s
            self.admission.reload_s = self.tiers.reload_s

    def set_rank(self, rollout_id: RolloutId, rank: int) -> None:
        """What evictions go by."""
        trajectory = self.table.tree.trajectories.get(rollout_id)
        if trajectory is not None:
            trajectory.rank = rank

    def retain(self, rollout_id: RolloutId, ttl_s: float) -> None:
        """Evict this rollout's pages after all others until the time is over."""
        now = self.clock()
        if len(self._kept_until) >= REMEMBERED_MAX:
            self._kept_until = {r: t for r, t in self._kept_until.items() if t > now}
        self._kept_until[rollout_id] = now + ttl_s
        trajectory = self.table.tree.trajectories.get(rollout_id)
        if trajectory is not None:
            trajectory.kept_until = now + ttl_s

    def release(self, rollout_id: RolloutId) -> None:
        """The rollout will not come back."""
        self._kept_until.pop(rollout_id, None)
        self.table.memory.release(rollout_id)
        self.table.release(rollout_id)

    def renew(
        self,
        served_sha: Callable[[Ticket], str],
        shas: Collection[str],
        kv: KvMode,
        open_turns: Iterable[Running],
    ) -> None:
        """Weights changed: what the old ones computed its own rollout finds alone; with `drop` it is gone.

        `served_sha` is what a turn runs with now, `shas` are those of all that can be asked for.
        """
        now = self.clock()
        for running in open_turns:
            weights_sha = served_sha(running.ticket)
            # Private keys are of several weights, also where these are those of the start.
            if running.weights_sha == weights_sha and not running.lease.is_private:
                continue
            running.digests = ()
            running.known_tokens = 0
            running.is_loading = False
            if kv is KvMode.DROP:
                self.table.truncate(running.lease, 0, now)
                running.weights_sha = weights_sha
                running.lease.namespace = namespace_of(running.ticket.request, weights_sha)
                running.lease.is_private = False
            else:
                running.lease.is_private = True
        self.table.retire(
            lambda namespace: namespace.weights_sha not in shas,
            now,
            keeps_paths=kv is KvMode.KEEP,
        )

    def _held(self, ticket: Ticket, now: float) -> list[Node]:
        trajectory = self.table.tree.trajectories.get(ticket.request.rollout_id)
        paths = [[] if trajectory is None else trajectory.path]
        paths.append(self.table.tree.stored(ticket.digests or ()))
        held = [one for path in paths for one in usable(path)]
        for node in held:
            self.table.tree.lock(node, now)
        return held

    def _fetch(self, running: Running) -> None:
        if self.tiers is not None and not running.lease.is_private:
            running.is_loading = self.tiers.fetch(running.lease, running.digests)

    def _note_start(self, ticket: Ticket, now: float) -> None:
        waited_s = now - ticket.waiting_since_s
        ticket.waited_s += waited_s
        self.admission.note_wait(waited_s)
        name = class_of(ticket.rank)
        self.wait_s[name] += waited_s
        self.starts[name] += 1


def namespace_of(request: GenRequest, weights_sha: str) -> Namespace:
    """Who may share the keys of this request."""
    return Namespace(request.tenant, weights_sha)
