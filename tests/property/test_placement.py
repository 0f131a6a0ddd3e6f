"""Nodes of unequal room under random jobs and faults: each sandbox is on one node, within its room."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from domain.commands import ForkSandboxes, ReleaseSandboxes
from domain.events import StateRestored
from domain.ids import HostId
from domain.states import TERMINAL, JobState
from scheduler.core.coordinator import Coordinator
from tests.property.worlds import finish, inflict, random_plan, random_workload
from tests.simulation.driver import World
from tests.simulation.plans import plan, pool
from tests.simulation.roomy import EACH, TEMPLATE, nodes_of
from tests.simulation.rows import JobRow

FAULTS: Final = ("engine", "node", "node", "link", "link", "leader", "late")

SEEDS: Final = range(12)


def roomy_world(seed: int, refusing: float = 0.0) -> tuple[World, list[JobRow], Random]:
    """One or two jobs on two or three nodes, the smallest of which takes one sandbox."""
    chance = Random(f"rooms {seed}")
    rooms = tuple(EACH * chance.choice([1, 2, 3, 5]) for _ in range(chance.choice([2, 3])))
    workload = random_workload(chance)
    if refusing:
        workload = replace(workload, refuses=lambda node, group: chance.random() < refusing)
    world = World(
        pool(engines=2, trainers=2, sandboxes=chance.choice([6, 20])),
        workload,
        nodes=len(rooms),
        node_bytes=rooms,
    )
    names = chance.choice([("a",), ("a", "b")])
    plans = [replace(random_plan(chance, name), templates=(TEMPLATE,)) for name in names]
    return world, [world.submit(one) for one in plans], chance


def forks(world: World) -> list[ForkSandboxes]:
    return [one for _, one in world.log if isinstance(one, ForkSandboxes)]


def twice(world: World) -> list[object]:
    """Tries that more than one node holds or makes now."""
    held = Counter(one for node in nodes_of(world) for one in {**node.holds, **node.making})
    return [one for one, count in held.items() if count > 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_sent_where_no_room_is(seed: int) -> None:
    """Without faults no node ever has to decline, and all jobs end."""
    world, jobs, _ = roomy_world(seed)
    doubled: list[object] = []
    while any(job.state not in TERMINAL for job in jobs) and world.now < 3_000:
        world.run_for(0.5)
        doubled += twice(world)
    finish(world, jobs)
    assert doubled == []
    assert [node.declined for node in nodes_of(world)] == [0] * world.nodes
    assert all(node.most <= node.capacity for node in nodes_of(world))
    assert all(job.state is JobState.SUCCEEDED for job in jobs)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_alone_splits_exactly_when_no_node_takes_it(seed: int) -> None:
    """One group at a time: nobody else is in its room, and all of it fits into the pool."""
    chance = Random(f"alone {seed}")
    rooms = tuple(chance.randint(1, 4) for _ in range(3))
    size = chance.randint(1, sum(rooms))
    job = plan(group_size=size, groups_per_batch=1, async_ratio=1.0, templates=(TEMPLATE,))
    world = World(pool(), nodes=3, node_bytes=tuple(EACH * room for room in rooms))
    finish(world, [world.submit(job)])
    groups = {fork.group_id for fork in forks(world)}
    assert len(groups) >= job.max_steps
    split = _split_at_first(forks(world))
    assert split == (groups if size > max(rooms) else set())


def _split_at_first(sent: list[ForkSandboxes]) -> set[str]:
    first: dict[str, set[HostId]] = {}
    for fork in sent:
        if all(try_ == 1 for _, try_ in fork.members):
            first.setdefault(fork.group_id, set()).add(fork.node)
    return {group for group, nodes in first.items() if len(nodes) > 1}


@pytest.mark.parametrize("seed", SEEDS)
def test_with_refusals_and_faults_jobs_end_and_nothing_stays_on_two_nodes(seed: int) -> None:
    world, jobs, chance = roomy_world(seed, refusing=0.3)
    for _ in range(6):
        world.run_for(chance.expovariate(1 / 3.0))
        inflict(world, jobs, chance.choice(FAULTS), chance)
    finish(world, jobs)
    assert twice(world) == []
    assert all(not node.holds and not node.making for node in nodes_of(world))


def test_the_worlds_of_this_file_decline_split_and_release() -> None:
    """Otherwise the others prove nothing."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        world, jobs, _ = roomy_world(seed, refusing=0.3)
        finish(world, jobs)
        seen["declined"] += sum(node.declined for node in nodes_of(world))
        seen["released"] += len(world.commands(ReleaseSandboxes))
        seen["split"] += len(_split_at_first(forks(world)))
    assert min(seen["declined"], seen["released"], seen["split"]) > 10, seen


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_each_term_decides_the_same_again_from_its_events(seed: int) -> None:
    """As a replay of its log does: reports and refusals are events."""
    world, jobs, chance = roomy_world(seed, refusing=0.3)
    for _ in range(4):
        world.run_for(chance.expovariate(1 / 3.0))
        inflict(world, jobs, chance.choice(FAULTS), chance)
    finish(world, jobs)
    again: list[object] = []
    core = Coordinator(world.pool, checking=True)
    for now, event in world.events:
        if isinstance(event, StateRestored):
            core = Coordinator(world.pool, checking=True)
        if core.accept(event) is None:
            again += core.step(now, event)
    assert again == [command for _, command in world.log]
