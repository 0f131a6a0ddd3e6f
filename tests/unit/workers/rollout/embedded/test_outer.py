"""Pages that leave for memory and for a file, and what comes back: the same bytes, or nothing."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from domain.ids import RolloutId
from infra import failpoints
from tests.support.failpoints import ArmedFailpoints
from workers.rollout.embedded.arena import ArenaShape, KvArena
from workers.rollout.embedded.pages.audit import check
from workers.rollout.embedded.pages.nodes import Lease, Namespace, Place, digests_of
from workers.rollout.embedded.pages.table import PageTable
from workers.rollout.embedded.pages.tree import EvictReason
from workers.rollout.embedded.tiers.outer import Leaving, OuterTiers
from workers.rollout.embedded.tiers.stores import (
    FetchError,
    FetchFailure,
    Stores,
    TierSizes,
    TierUnavailable,
)

ANN = Namespace("ann", "sha")
CPU = torch.device("cpu")
PAGES = 4
CONTEXT = 3 * 16 + 5
WAIT_S = 10.0


class Machine:
    """An arena of four pages with its tiers; contents of pages are random."""

    def __init__(self, sizes: TierSizes) -> None:
        torch.manual_seed(0)
        self.now = 0.0
        self.arena = KvArena(ArenaShape(layers=2, kv_heads=1, head_dim=4), PAGES, CPU)
        self.table = PageTable(PAGES)
        self.tiers = OuterTiers(self.arena, self.table, sizes, lambda: self.now)

    def tokens(self, name: str) -> tuple[int, ...]:
        return tuple(ord(c) for c in name) + tuple(range(CONTEXT - len(name)))

    def open(self, name: str) -> Lease:
        return self.table.open(RolloutId(name), ANN, self.tokens(name), self.now)

    def run(self, name: str) -> torch.Tensor:
        """A whole turn, computed anew where nothing is on the device; what stands in its full pages."""
        lease, tokens = self.open(name), self.tokens(name)
        assert self.table.grow(lease, CONTEXT, EvictReason.PROMPT, self.now)
        for layer in self.arena.layers:
            layer[lease.pages] = torch.randn(len(lease.pages), *layer.shape[1:])
        self.table.fill(lease, tokens[lease.length :], self.now)
        content = self.arena.read(lease.pages[:3])
        self.table.close(lease, True, self.now)
        self.settle()
        return content

    def settle(self) -> None:
        """Wait until all transfers are done."""
        self.tiers.flush()
        while self.tiers.is_open:
            self.tiers.collect(WAIT_S)
            self.tiers.flush()
        check(self.table)

    def fetch(self, name: str) -> Lease:
        lease = self.open(name)
        assert self.tiers.fetch(lease, digests_of(ANN, self.tokens(name)[:-1]))
        assert lease.length == 0
        self.settle()
        return lease

    def used(self) -> tuple[int, int]:
        return self.tiers.used(Place.HOST), self.tiers.used(Place.DISK)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    made: list[Machine] = []
    yield made
    assert list(tmp_path.glob("kv-*")) == [], "nothing to leave behind, however the process ends"
    for machine in made:
        machine.tiers.close()


@pytest.fixture
def armed(tmp_path: Path) -> Iterator[ArmedFailpoints]:
    points = ArmedFailpoints(tmp_path / "failpoints")
    failpoints.configure("test", points.environ)
    yield points
    failpoints.configure("test", {})


def machine(machines: list[Machine], folder: Path, host: int, disk: int) -> Machine:
    machines.append(Machine(TierSizes(host, disk, folder)))
    return machines[-1]


@pytest.mark.parametrize(("host", "disk"), [(8, 0), (0, 8), (2, 6)])
def test_a_context_that_left_the_device_comes_back_as_it_was(
    machines: list[Machine], tmp_path: Path, host: int, disk: int
) -> None:
    one = machine(machines, tmp_path, host, disk)
    before = one.run("a")
    one.run("b")
    assert sum(one.used()) == 3
    assert one.tiers.reload_s is None
    lease = one.fetch("a")
    assert lease.length == 48
    assert (one.tiers.reload_s is not None) == (0 in (host, disk)), (
        "the slower tier is none of memory"
    )
    assert torch.equal(one.arena.read(lease.pages), before)
    moved = one.tiers.counters.bytes_moved
    back = moved[Place.HOST, Place.DEVICE] + moved[Place.DISK, Place.DEVICE]
    assert back == 3 * one.arena.shape.page_bytes


def test_memory_that_fills_up_moves_the_least_useful_pages_to_the_file(
    machines: list[Machine], tmp_path: Path
) -> None:
    one = machine(machines, tmp_path, 8, 16)
    for name in "abcd":
        one.run(name)
    one.tiers.collect()
    one.settle()
    assert one.used() == (7, 2)
    assert one.tiers.counters.bytes_moved[Place.HOST, Place.DISK] > 0
    assert one.fetch("a").length == 48


def test_full_tiers_give_up_what_is_worth_less_and_nothing_that_is_worth_more(
    machines: list[Machine], tmp_path: Path
) -> None:
    one = machine(machines, tmp_path, 3, 0)
    for name, rank in (("best", 1), ("worst", 9), ("middle", 5), ("last", 0)):
        one.run(name)
        one.table.tree.trajectories[RolloutId(name)].rank = rank
    assert one.used() == (3, 0)
    assert one.tiers.counters.pages_left[Leaving.DROPPED] >= 3
    assert one.fetch("best").length == 48


@pytest.mark.parametrize(
    ("point", "failure"),
    [
        ("engine.kv.fetch=raise:os", FetchFailure.FAILED),
        ("engine.kv.fetch=drop", FetchFailure.SHORT),
        ("engine.kv.store=drop,times=*", FetchFailure.CHECKSUM),
    ],
)
@pytest.mark.parametrize("place", [Place.HOST, Place.DISK])
def test_a_fetch_that_fails_leaves_the_context_to_be_computed(
    machines: list[Machine],
    tmp_path: Path,
    armed: ArmedFailpoints,
    point: str,
    failure: FetchFailure,
    place: Place,
) -> None:
    sizes = (8, 0) if place is Place.HOST else (0, 8)
    one = machine(machines, tmp_path, *sizes)
    one.run("a")
    armed.arm(point)
    one.run("b")
    lease = one.fetch("a")
    assert (lease.length, lease.nodes) == (0, [])
    assert one.tiers.counters.fetch_failures == {failure: 3}
    assert sum(one.used()) == 2, "only those of the other rollout, which left for this one"


def test_a_store_that_fails_keeps_nothing(
    machines: list[Machine], tmp_path: Path, armed: ArmedFailpoints
) -> None:
    one = machine(machines, tmp_path, 8, 0)
    one.run("a")
    armed.arm("engine.kv.store=raise:os,times=*")
    one.run("b")
    assert one.used() == (0, 0)
    assert one.tiers.counters.store_failures == 3
    lease = one.open("a")
    assert not one.tiers.fetch(lease, digests_of(ANN, one.tokens("a")[:-1]))


def test_a_fetch_that_is_late_is_given_up_and_its_content_is_not_used(
    machines: list[Machine], tmp_path: Path, armed: ArmedFailpoints
) -> None:
    one = machine(machines, tmp_path, 8, 0)
    one.run("a")
    one.run("b")
    armed.arm("engine.kv.fetch=sleep:0.05")
    lease = one.open("a")
    assert one.tiers.fetch(lease, digests_of(ANN, one.tokens("a")[:-1]))
    one.now = 2.0
    one.tiers.collect()
    assert lease.nodes == []
    assert one.tiers.counters.fetch_failures == {FetchFailure.LATE: 3}
    one.settle()
    assert lease.nodes == []


def test_a_turn_that_ends_while_its_pages_come_leaves_the_copies_where_they_are(
    machines: list[Machine], tmp_path: Path
) -> None:
    one = machine(machines, tmp_path, 8, 0)
    before = one.run("a")
    one.run("b")
    lease = one.open("a")
    one.tiers.fetch(lease, digests_of(ANN, one.tokens("a")[:-1]))
    one.table.park(lease, 0.0)
    one.settle()
    one.table.resume(lease, 0.0)
    assert lease.length == 0
    one.table.close(lease, False, 0.0)
    again = one.fetch("a")
    assert torch.equal(one.arena.read(again.pages), before)


def test_pages_that_are_computed_sooner_than_fetched_are_not_kept(
    machines: list[Machine], tmp_path: Path
) -> None:
    one = machine(machines, tmp_path, 8, 0)
    one.run("a")
    one.run("b")
    one.table.close(one.fetch("a"), True, 0.0)
    one.tiers.compute_s = 1e-12
    one.run("c")
    assert one.tiers.counters.pages_left[Leaving.CHEAPER] == 4
    assert not one.tiers.fetch(one.open("b"), digests_of(ANN, one.tokens("b")[:-1]))


def test_a_file_that_was_cut_short_is_not_read_behind_its_end(tmp_path: Path) -> None:
    stores = Stores(TierSizes(disk_pages=4, folder=tmp_path), page_bytes=4096)
    checksum = stores.write(Place.DISK, 3, np.ones(4096, dtype=np.uint8))
    assert stores.read(Place.DISK, 3, checksum).all()
    os.ftruncate(stores._file, 4096)
    with pytest.raises(FetchError) as failed:
        stores.read(Place.DISK, 3, checksum)
    assert failed.value.failure is FetchFailure.SHORT
    stores.close()


def test_a_disk_without_room_for_the_tier_is_known_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TierUnavailable, match=r"No space.*VENUS_KV_DISK_PAGES"):
        Stores(TierSizes(disk_pages=4, folder=tmp_path), page_bytes=4096)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sizes", "setting"),
    [
        (TierSizes(disk_pages=4, folder=Path("/nowhere")), "VENUS_KV_DISK_PAGES"),
        (TierSizes(disk_pages=1 << 60), "VENUS_KV_DISK_PAGES"),
        (TierSizes(host_pages=1 << 60), "VENUS_KV_HOST_PAGES"),
    ],
)
def test_a_tier_that_cannot_be_had_names_its_setting(sizes: TierSizes, setting: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TierUnavailable, match=setting):
        Machine(sizes)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("host", "disk"), [(8, 0), (0, 8), (8, 16)])
@pytest.mark.parametrize("point", ["engine.kv.store", "engine.kv.fetch"])
def test_a_defect_in_a_transfer_switches_the_tiers_off_and_is_counted(
    machines: list[Machine],
    tmp_path: Path,
    armed: ArmedFailpoints,
    host: int,
    disk: int,
    point: str,
) -> None:
    one = machine(machines, tmp_path, host, disk)
    for name in "abc":
        one.run(name)
    assert one.tiers.counters.pages_left[Leaving.OFF] == 0
    if point == "engine.kv.store":
        one.table.close(one.fetch("a"), True, one.now)
    armed.arm(f"{point}=raise,times=1")
    if point == "engine.kv.fetch":
        assert one.fetch("a").length == 0
        assert one.tiers.counters.fetch_failures == {FetchFailure.OFF: 3}
    else:
        one.run("d")
        assert one.tiers.counters.store_failures > 0
    assert one.tiers.is_off
    assert one.tiers.reload_s is None
    assert not one.tiers.fetch(one.open("b"), digests_of(ANN, one.tokens("b")[:-1]))
    assert one.tiers.read(list(one.table.tree.nodes.values())) == []
    assert one.used() == (0, 0)
    if point == "engine.kv.store":
        one.run("e")
        assert one.tiers.counters.pages_left[Leaving.OFF] > 0
