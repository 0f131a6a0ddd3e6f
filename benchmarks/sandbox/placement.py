"""What one placement costs the leader, on a pool that is full but for what has just ended.

The pool is filled to its number of sandboxes by placements themselves. Then one group ends and one is
placed, again and again, with the reports that nodes send between them outside the timed part. Time is
processor time of this thread, the collector of cycles off.
"""

import gc
import time
from collections import deque
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from benchmarks.sandbox.fixed import PlacementNumbers, fixed
from domain.ids import GroupId, OrganizationId
from sandboxes.core.admission import Refused
from sandboxes.core.asks import GroupAsk, NodeReport, Placement
from sandboxes.core.names import NodeId, PlacementId, TemplateId
from sandboxes.core.placement import Pool
from simulation.sandboxes.demand import MB

TENANTS: Final = 20
EXPECTED: Final = 220 * MB
TEMPLATE: Final = 92 * MB
OVERHEAD: Final = 5 * MB
ROUNDS: Final = 3
"""Of each pool; others on the machine slow single ones."""


@dataclass(frozen=True, slots=True)
class PlacementFigures:
    """Microseconds of processor time."""

    filled: float
    """Share of the pool's room that its sandboxes take."""
    p50_us: float
    p99_us: float
    max_us: float
    mean_us: float
    split: int
    refused: int
    rounds_p99_us: tuple[float, ...] = ()


class Filled:
    """The pool with what nodes would report."""

    def __init__(self, numbers: PlacementNumbers, filled: float) -> None:
        self.numbers = numbers
        self.chance = Random(numbers.seed)
        self.pool = Pool(numbers.nodes)
        self.live: deque[tuple[GroupAsk, tuple[Placement, ...]]] = deque()
        self.groups = 0
        each = numbers.sandboxes / numbers.nodes / filled
        self.empty_bytes = each * (EXPECTED + OVERHEAD) + each / numbers.members * TEMPLATE
        self.used: dict[NodeId, float] = {}
        self.holds: dict[NodeId, dict[TemplateId, int]] = {}
        self.pressure: dict[NodeId, float] = {}
        for index in range(numbers.nodes):
            node_id = NodeId(f"node{index:05d}")
            self.used[node_id], self.holds[node_id] = 0.0, {}
            self.pressure[node_id] = self.chance.choice([0.0, 0.0, 0.01, 0.03])
            self.report(node_id)

    def report(self, node_id: NodeId, *included: PlacementId) -> None:
        """The node says what it holds."""
        self.pool.report(
            NodeReport(
                node_id, self.empty_bytes - self.used[node_id], 1e6, self.empty_bytes, 1e6,
                OVERHEAD, self.pressure[node_id], True, frozenset(self.holds[node_id]),
            ),
            included,
        )  # fmt: skip

    def ask(self) -> GroupAsk:
        """A new group of some tenant and one of its templates; few are asked for often."""
        self.groups += 1
        which = int(self.numbers.templates * self.chance.random() ** 2)
        return GroupAsk(
            GroupId(f"g{self.groups}"), OrganizationId(f"org{which % TENANTS}"),
            TemplateId(f"t{which}"), self.numbers.members, EXPECTED, 0.1, TEMPLATE,
        )  # fmt: skip

    def settle(self, ask: GroupAsk, placed: tuple[Placement, ...]) -> None:
        """The nodes have the group and say so."""
        for one in placed:
            holds = self.holds[one.node_id]
            holds[ask.template] = holds.get(ask.template, 0) + 1
            self.used[one.node_id] += one.cost_bytes
            self.report(one.node_id, one.placement_id)
        self.live.append((ask, placed))

    def end_one(self) -> None:
        """Some group ends."""
        self.live.rotate(-self.chance.randrange(min(64, len(self.live))))
        ask, placed = self.live.popleft()
        for one in placed:
            holds = self.holds[one.node_id]
            holds[ask.template] -= 1
            if not holds[ask.template]:
                del holds[ask.template]
            self.used[one.node_id] -= one.cost_bytes
            self.pool.released(ask.tenant, one.node_id)
            self.report(one.node_id)


def measure_all() -> list[PlacementFigures]:
    """Each pool by its best round."""
    found = []
    for filled in fixed().placement.filled:
        rounds = [measure(filled) for _ in range(ROUNDS)]
        best = min(rounds, key=lambda one: one.p99_us)
        found.append(replace(best, rounds_p99_us=tuple(one.p99_us for one in rounds)))
    return found


def measure(share: float) -> PlacementFigures:
    """Fill, then place and time."""
    numbers = fixed().placement
    filled = Filled(numbers, share)
    for _ in range(numbers.sandboxes // numbers.members):
        ask = filled.ask()
        placed = filled.pool.place(ask)
        assert not isinstance(placed, Refused), "the pool has room for its sandboxes"
        filled.settle(ask, placed)
    taken: list[int] = []
    split = refused = 0
    gc.disable()
    for _ in range(numbers.placements):
        filled.end_one()
        ask = filled.ask()
        begin = time.thread_time_ns()
        placed = filled.pool.place(ask)
        taken.append(time.thread_time_ns() - begin)
        if isinstance(placed, Refused):
            refused += 1
            continue
        split += len(placed) > 1
        filled.settle(ask, placed)
    gc.enable()
    taken.sort()

    def at(level: float) -> float:
        return taken[int(level * (len(taken) - 1))] / 1e3

    return PlacementFigures(
        share, at(0.5), at(0.99), at(1.0),
        sum(taken) / len(taken) / 1e3, split, refused,
    )  # fmt: skip
