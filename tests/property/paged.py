"""Two page tables under random work, with the content of every page followed beside them.

A page's content is said by what it was computed from: for each of its tokens the weights and all tokens up to
it. Whatever a table hands to a turn must be what the turn would compute itself.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

from domain.ids import RolloutId
from kv.rules import Eviction
from workers.rollout.embedded.pages.audit import check
from workers.rollout.embedded.pages.nodes import (
    PAGE_TOKENS,
    Copy,
    Lease,
    Namespace,
    Node,
    Place,
    digests_of,
)
from workers.rollout.embedded.pages.table import PageTable
from workers.rollout.embedded.pages.tree import EvictReason

Made = tuple[str, tuple[int, ...]]
"""Weights and tokens that one key was computed from."""

PAGES: Final = 28
COPIES: Final = 24
RARE: Final = 0.97
"""Of updates drawn, so many are left out: between two there is time for pages to be found again."""

TURNS_MAX: Final = 9
CONTEXT: Final = 6 * PAGE_TOKENS

OPS: Final = (
    "insert", "insert", "insert", "work", "work", "work", "work", "work", "work", "finish", "finish",
    "abort", "park", "resume", "resume", "fetch", "arrive", "arrive", "fail", "stored", "stored",
    "lose", "evict", "fork", "release", "rerank", "migrate", "adapter_swap", "weight_update",
)  # fmt: skip


@dataclass
class Turn:
    """A turn under way: its tokens, and what it was computed from so far."""

    lease: Lease
    tokens: list[int]
    made: list[Made]


@dataclass
class Engine:
    """One table, the content of its pages and of its outer tier."""

    table: PageTable
    pages: dict[int, list[Made]] = field(default_factory=dict)
    copies: dict[int, list[Made]] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)


def engine(rule: Eviction) -> Engine:
    """An engine whose outer tier holds fewer pages than may leave."""
    one = Engine(PageTable(PAGES, rule, lambda source, target: branch(source, target)))

    def branch(source: int, target: int) -> None:
        one.pages[target] = list(one.pages[source])

    def leave(node: Node) -> None:
        if len(one.copies) < COPIES:
            assert node.page is not None
            slot = next(s for s in range(COPIES) if s not in one.copies)
            one.copies[slot] = list(one.pages[node.page])
            node.copy = Copy(Place.HOST, slot)

    def unused(node: Node) -> None:
        assert node.copy is not None
        del one.copies[node.copy.slot]

    one.table.tree.on_leave = leave
    one.table.tree.on_copy_unused = unused
    return one


class World:
    """Draws operations; `play` checks the accounting and the content after each."""

    def __init__(self, seed: int, rule: Eviction) -> None:
        self.rng = Random(seed)
        self.engines = [engine(rule), engine(rule)]
        self.base = 0
        self.adapters = Counter[str]()
        self.now = 0.0
        self.counts: Counter[str] = Counter()
        self.histories: dict[str, list[int]] = {}

    def play(self, operations: int) -> None:
        """So many random operations."""
        for _ in range(operations):
            self.now += self.rng.random()
            name = self.rng.choice(OPS)
            one = self.rng.choice(self.engines)
            if getattr(self, f"_{name}")(one):
                self.counts[name] += 1
            for each in self.engines:
                check(each.table)
                assert set(each.copies) == {
                    n.copy.slot for n in each.table.tree.nodes.values() if n.copy is not None
                }

    def drain(self) -> None:
        """End every turn and rollout: nothing is left."""
        for one in self.engines:
            for turn in list(one.turns):
                self._end(one, turn, keep=True)
            for rollout_id in list(one.table.tree.trajectories):
                one.table.release(rollout_id)
            one.table.retire(lambda namespace: True, self.now)
            check(one.table)
            assert len(one.table.tree.free) == PAGES
            assert one.table.tree.trajectories == {}
            assert one.copies == {}

    def _insert(self, one: Engine) -> bool:
        if len(one.turns) >= TURNS_MAX:
            return False
        rng = self.rng
        tenant = rng.choice(("ann", "bob"))
        group, member = rng.randrange(3), rng.randrange(4)
        name = f"{tenant}.{group}.{member}"
        tokens = self.histories.get(name)
        if tokens is None or len(tokens) > CONTEXT - 20 or rng.random() < 0.1:
            tokens = [group] * (8 + 12 * group) + [member]
        tokens = tokens + [rng.randrange(3) for _ in range(rng.randrange(1, 20))]
        self._start(one, tenant, name, tokens)
        return True

    def _start(self, one: Engine, tenant: str, name: str, tokens: list[int]) -> None:
        namespace = self._namespace(tenant)
        lease = one.table.open(RolloutId(name), namespace, tokens, self.now, tenant)
        lease.trajectory.rank = self.rng.randrange(5)
        assert lease.length < len(tokens)
        if lease.is_private:
            turn = Turn(lease, tokens, self._kept(one, lease, tokens, tenant))
        else:
            turn = Turn(lease, tokens, self._computed(lease, tokens, lease.length))
        one.turns.append(turn)
        self._check_content(one, turn)
        self.counts["found"] += bool(lease.length)
        if self.rng.random() < 0.7:
            self.counts["fetch"] += self._fetch_for(one, turn)

    def _work(self, one: Engine) -> bool:
        turn = self._pick(one, parked=False)
        if turn is None or any(n.is_coming for n in turn.lease.nodes):
            return False
        lease = turn.lease
        if lease.length == len(turn.tokens):
            if len(turn.tokens) >= CONTEXT:
                return False
            turn.tokens.append(self.rng.randrange(3))
        digests = digests_of(lease.namespace, turn.tokens[:-1])
        if one.table.extend(lease, digests, self.now):
            turn.made[:] = self._computed(lease, turn.tokens, lease.length)
        end = min(len(turn.tokens), lease.length + self.rng.randrange(1, 24))
        ahead = self.rng.choice((0, 20))
        if not one.table.grow(lease, end + ahead, EvictReason.GROWTH, self.now):
            return False
        fresh = turn.tokens[lease.length : end]
        start = lease.length
        sha = f"mixed of {lease.lineage}" if lease.is_private else lease.namespace.weights_sha
        for at in range(start, end):
            made = (sha, tuple(turn.tokens[: at + 1]))
            turn.made.append(made)
            page = one.pages.setdefault(lease.pages[at // PAGE_TOKENS], [])
            del page[at % PAGE_TOKENS :]
            page.append(made)
        self.counts["shared"] += one.table.fill(lease, fresh, self.now)
        self._check_content(one, turn)
        return True

    def _finish(self, one: Engine) -> bool:
        turn = self._pick(one, parked=False)
        if turn is None:
            return False
        self._end(one, turn, keep=True)
        self.histories[turn.lease.trajectory.rollout_id] = turn.tokens
        return True

    def _abort(self, one: Engine) -> bool:
        turn = self._pick(one)
        if turn is None:
            return False
        self._end(one, turn, keep=False)
        return True

    def _park(self, one: Engine) -> bool:
        turn = self._pick(one, parked=False)
        if turn is None:
            return False
        one.table.park(turn.lease, self.now)
        return True

    def _resume(self, one: Engine) -> bool:
        turn = self._pick(one, parked=True)
        if turn is None:
            return False
        one.table.resume(turn.lease, self.now)
        del turn.made[turn.lease.length :]
        self._check_content(one, turn)
        return True

    def _fetch(self, one: Engine) -> bool:
        turn = self._pick(one, parked=False)
        if turn is None or any(n.is_coming for n in turn.lease.nodes):
            return False
        return self._fetch_for(one, turn)

    def _fetch_for(self, one: Engine, turn: Turn) -> bool:
        lease = turn.lease
        nodes = one.table.missing(lease, digests_of(lease.namespace, turn.tokens[:-1]))
        got = bool(nodes) and bool(one.table.fetch(lease, nodes, self.now))
        del turn.made[lease.length :]
        return got

    def _arrive(self, one: Engine) -> bool:
        turn = self._pick(one, parked=False, coming=True)
        if turn is None:
            return False
        for node in turn.lease.nodes:
            if node.is_coming:
                assert node.page is not None
                assert node.copy is not None
                one.pages[node.page] = list(one.copies[node.copy.slot])
        one.table.arrived(turn.lease)
        turn.made[:] = self._computed(turn.lease, turn.tokens, turn.lease.length)
        self._check_content(one, turn)
        return True

    def _fail(self, one: Engine) -> bool:
        turn = self._pick(one, parked=False, coming=True)
        if turn is None:
            return False
        one.table.failed(turn.lease, self.now)
        return True

    def _stored(self, one: Engine) -> bool:
        copies = [node.copy for node in one.table.tree.nodes.values() if node.copy is not None]
        stored = [copy for copy in copies if not copy.is_ready]
        for copy in stored:
            copy.is_ready = True
        return bool(stored)

    def _lose(self, one: Engine) -> bool:
        away = [n for n in one.table.tree.nodes.values() if n.page is None]
        if not away or self.rng.random() < 0.8:
            return False
        one.table.lost(self.rng.choice(away))
        return True

    def _evict(self, one: Engine) -> bool:
        tree = one.table.tree
        count = self.rng.randrange(1, PAGES)
        before = len(tree.free), set(tree.nodes)
        could = tree.make_room(count, EvictReason.PROMPT, self.now)
        assert could == (len(tree.free) >= count)
        assert could or before == (len(tree.free), set(tree.nodes))
        return could

    def _fork(self, one: Engine) -> bool:
        known = sorted(one.table.tree.trajectories)
        if not known:
            return False
        source = self.rng.choice(known)
        tenant, group, _ = source.split(".")
        target = RolloutId(f"{tenant}.{group}.{self.rng.randrange(4)}")
        one.table.fork(source, target)
        if source in self.histories:
            self.histories[target] = list(self.histories[source])
        return True

    def _release(self, one: Engine) -> bool:
        known = sorted(one.table.tree.trajectories)
        if self.rng.random() < 0.7:
            return False
        if known:
            one.table.release(self.rng.choice(known))
        return bool(known)

    def _rerank(self, one: Engine) -> bool:
        for trajectory in one.table.tree.trajectories.values():
            trajectory.rank = self.rng.randrange(5)
            trajectory.is_low = self.rng.random() < 0.5
        return True

    def _migrate(self, one: Engine) -> bool:
        """A rollout's pages go to the other engine, then it is released here."""
        known = sorted(one.table.tree.trajectories)
        if not known:
            return False
        name = self.rng.choice(known)
        namespace = self._namespace(name.split(".")[0])
        nodes = one.table.exported(name, namespace)
        tokens = [token for node in nodes for token in node.tokens]
        other = self.engines[one is self.engines[0]]
        first, pages = other.table.adopt(name, namespace, tokens, self.now)
        for node, page in zip(nodes[first:], pages, strict=bool(pages)):
            other.pages[page] = self._copied(one, node)
        one.table.release(name)
        return bool(pages)

    def _copied(self, one: Engine, node: Node) -> list[Made]:
        if node.is_usable:
            assert node.page is not None
            return list(one.pages[node.page])
        self.counts["migrated from outside"] += 1
        assert node.copy is not None
        return list(one.copies[node.copy.slot])

    def _adapter_swap(self, one: Engine) -> bool:
        if self.rng.random() < RARE:
            return False
        tenant = self.rng.choice(("ann", "bob"))
        old = self._namespace(tenant)
        self.adapters[tenant] += 1
        self._retire(lambda namespace: namespace == old)
        return True

    def _weight_update(self, one: Engine) -> bool:
        if self.rng.random() < RARE:
            return False
        self.base += 1
        self._retire(lambda namespace: True)
        return True

    def _retire(self, is_stale: object) -> None:
        assert callable(is_stale)
        keeps_paths = self.rng.random() < 0.8
        for one in self.engines:
            one.table.retire(is_stale, self.now, keeps_paths=keeps_paths)
            for turn in one.turns:
                del turn.made[turn.lease.length :]

    def _namespace(self, tenant: str) -> Namespace:
        return Namespace(tenant, f"base {self.base} adapter {self.adapters[tenant]} of {tenant}")

    def _computed(self, lease: Lease, tokens: list[int], length: int) -> list[Made]:
        sha = lease.namespace.weights_sha
        return [(sha, tuple(tokens[: at + 1])) for at in range(length)]

    def _kept(self, one: Engine, lease: Lease, tokens: list[int], tenant: str) -> list[Made]:
        """A rollout that is older than the weights goes on over its own keys, of whichever weights."""
        self.counts["kept"] += 1
        made = [
            one.pages[lease.pages[at // PAGE_TOKENS]][at % PAGE_TOKENS]
            for at in range(lease.length)
        ]
        assert [context for _, context in made] == [
            tuple(tokens[: at + 1]) for at in range(lease.length)
        ]
        assert all(sha.endswith(f" of {tenant}") for sha, _ in made)
        return made

    def _pick(
        self, one: Engine, *, parked: bool | None = None, coming: bool | None = None
    ) -> Turn | None:
        fitting = [
            turn
            for turn in one.turns
            if parked in (None, turn.lease.is_parked)
            and coming in (None, any(node.is_coming for node in turn.lease.nodes))
        ]
        return self.rng.choice(fitting) if fitting else None

    def _check_content(self, one: Engine, turn: Turn) -> None:
        """What stands in the turn's pages is what it would have computed itself."""
        lease = turn.lease
        assert len(turn.made) == lease.length
        got = [
            one.pages[lease.pages[at // PAGE_TOKENS]][at % PAGE_TOKENS]
            for at in range(lease.length)
        ]
        assert got == turn.made

    def _end(self, one: Engine, turn: Turn, *, keep: bool) -> None:
        before, own = len(one.table.tree.free), turn.lease.nodes[turn.lease.found :]
        # The locks of a turn without a slot are those of others who took its pages over.
        locks = 0 if turn.lease.is_parked else 1
        alone = sum(
            1
            for node in own
            if node.locks == locks and not node.references and not node.children
            and node.page is not None
        )  # fmt: skip
        one.turns.remove(turn)
        one.table.close(turn.lease, keep, self.now)
        if not keep:
            assert len(one.table.tree.free) >= before + min(alone, 1)
