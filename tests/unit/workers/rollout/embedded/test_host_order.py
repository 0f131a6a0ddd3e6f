"""Which pages of the host's memory go first: as if all were sorted, without sorting all."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest

from domain.ids import RolloutId
from kv.ranks import RankClass, compose
from kv.rules import Eviction
from tests.unit.workers.rollout.embedded.test_outer import ANN, Machine
from workers.rollout.embedded.pages.nodes import Lease, Node, Place, digests_of
from workers.rollout.embedded.tiers.order import is_in
from workers.rollout.embedded.tiers.outer import MOVES_MAX
from workers.rollout.embedded.tiers.stores import TierSizes

RANKS = [compose(one, group, 0) for one in RankClass for group in range(2)]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    one = Machine(TierSizes(host_pages=120, disk_pages=40, folder=tmp_path))
    yield one
    one.tiers.close()


def sorted_whole(machine: Machine) -> list[Node]:
    """All pages in the host's memory, by the order that evicts from the device."""
    nodes = machine.table.tree.nodes.values()
    return machine.table.tree.in_order([n for n in nodes if is_in(n, Place.HOST)], machine.now)


class Work:
    """Random things that happen to the pages of a few rollouts."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine = machine
        self.chance = Random(seed)
        self.leases: dict[str, Lease] = {}

    def step(self) -> None:
        machine, chance = self.machine, self.chance
        name = chance.choice("abcdefghijkl")
        machine.now += chance.choice((0.0, 1.0))
        act = chance.choice((self._run, self._run, self._come, self._end, self._rank, self._fork))
        act(name)
        if chance.random() < 0.1:
            machine.table.release(RolloutId(name))
        if chance.random() < 0.5:
            machine.settle()

    def _run(self, name: str) -> None:
        if not self.leases:
            self.machine.run(name)

    def _come(self, name: str) -> None:
        """A fetch begins, and may still be under way when the turn ends."""
        machine = self.machine
        if not self.leases:
            self.leases[name] = lease = machine.open(name)
            machine.tiers.fetch(lease, digests_of(ANN, machine.tokens(name)[:-1]))

    def _end(self, name: str) -> None:
        for lease in self.leases.values():
            self.machine.table.close(lease, self.chance.random() < 0.5, self.machine.now)
        self.leases.clear()

    def _rank(self, name: str) -> None:
        trajectory = self.machine.table.tree.trajectories.get(RolloutId(name))
        if trajectory is not None:
            trajectory.rank = self.chance.choice(RANKS)
            trajectory.is_low = self.chance.random() < 0.5
            trajectory.kept_until = self.chance.choice((0.0, self.machine.now + 3.0))

    def _fork(self, name: str) -> None:
        self.machine.table.fork(RolloutId(name), RolloutId(self.chance.choice("abcd")))


@pytest.mark.parametrize("demotes", [True, False])
@pytest.mark.parametrize("rule", list(Eviction))
def test_the_first_pages_are_those_of_a_sort_of_all(
    rule: Eviction, demotes: bool, machine: Machine
) -> None:
    machine.table.tree.rule, machine.table.tree.demotes = rule, demotes
    work, lengths = Work(machine, seed=3), set[int]()
    for _ in range(400):
        work.step()
        expected = sorted_whole(machine)
        lengths.add(len(expected))
        for count in (1, MOVES_MAX, 500):
            assert machine.tiers._in_host.first(count, machine.now) == expected[:count]
    assert max(lengths) > MOVES_MAX


def test_a_step_that_spills_looks_at_a_few_pages_of_each_rollout(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(35):
        machine.run(f"ro_{number}")
    assert machine.tiers.used(Place.HOST) > 90
    for number in range(35):
        machine.table.release(RolloutId(f"ro_{number}"))
    tree, looked_at = machine.table.tree, list[int]()
    in_order = tree.in_order

    def counted(nodes: Iterable[Node], now: float) -> list[Node]:
        found = in_order(nodes, now)
        looked_at.append(len(found))
        return found

    monkeypatch.setattr(tree, "in_order", counted)
    machine.tiers.sizes = TierSizes(host_pages=240, disk_pages=40)
    machine.tiers.collect()
    assert len(machine.tiers._moving) == MOVES_MAX
    assert sum(looked_at) <= 1 + MOVES_MAX
