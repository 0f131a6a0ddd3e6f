"""Which engine and which node, and what the hop does."""

from domain.commands import ForkSandboxes, PlaceRollout
from domain.ids import node_host_id
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench, engine_id

SMALL = plan(engines_max=2)


def place(bench: Bench, ordinal: int) -> list[PlaceRollout]:
    found = []
    for rollout in bench.group(ordinal).rollouts:
        found += bench.found(PlaceRollout, bench.ready(rollout))
    return found


def test_a_group_stays_on_one_engine_and_groups_spread_by_load() -> None:
    bench = Bench.running(SMALL, engines=2)
    hosts = [[p.host_id for p in place(bench, ordinal)] for ordinal in (0, 1, 2, 3)]
    first, second = engine_id(0), engine_id(1)
    assert hosts == [[first] * 2, [second] * 2, [first] * 2, [second] * 2]


def test_every_placement_raises_the_hop_and_a_new_try_does_not_restart_it() -> None:
    bench = Bench.running(SMALL)
    assert [p.hop for p in place(bench, 0)] == [1, 1]
    bench.fail(bench.rollout(0))
    bench.tick()
    placed = bench.found(PlaceRollout, bench.ready(bench.rollout(0)))
    assert [(p.try_, p.hop) for p in placed] == [(2, 2)]


def test_a_group_forks_whole_on_the_least_loaded_node() -> None:
    bench = Bench()
    for index in (0, 1):
        bench.node(index)
    bench.start(SMALL)
    forks = bench.found(ForkSandboxes, bench.commands)
    nodes = [fork.node for fork in forks]
    assert nodes == [node_host_id(0), node_host_id(1)] * 2
    assert all(len(fork.members) == 2 for fork in forks)


def test_rollouts_of_a_lost_engine_go_on_elsewhere_under_the_same_try() -> None:
    bench = Bench.running(SMALL, engines=2)
    place(bench, 0)
    bench.turn(bench.rollout(0), 1)
    placed = bench.found(PlaceRollout, bench.lost(engine_id(0)))
    assert [(p.host_id, p.try_, p.hop) for p in placed] == [(engine_id(1), 1, 2)] * 2


def test_without_another_engine_rollouts_wait_for_the_host_to_come_back() -> None:
    bench = Bench.running(SMALL)
    place(bench, 0)
    assert bench.found(PlaceRollout, bench.lost(engine_id(0))) == []
    bench.engine(SMALL, 0, epoch=2)
    placed = bench.found(PlaceRollout, bench.synced(SMALL, 0, 0, epoch=2))
    assert [(p.epoch, p.hop) for p in placed] == [(2, 2)] * 2


def test_an_engine_without_weights_gets_nothing() -> None:
    bench = Bench.running(SMALL)
    bench.engine(SMALL, 1)
    assert {p.host_id for p in place(bench, 0)} == {engine_id(0)}


def test_no_rollout_of_a_group_starts_on_weights_older_than_the_group() -> None:
    job = plan(max_staleness=2, async_ratio=9.0, max_steps=9)
    bench = Bench.running(job, engines=2)
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))
    bench.commit(1)
    bench.synced(job, 1, 1)
    newest = bench.opened()[-1]
    assert newest.policy_version == 1
    assert {p.host_id for p in place(bench, newest.ordinal)} == {engine_id(1)}


def test_a_rollout_that_an_engine_lost_in_a_broken_link_is_placed_again() -> None:
    bench = Bench.running(SMALL)
    place(bench, 0)
    placed = bench.found(PlaceRollout, bench.engine(SMALL, 0, version=0))
    assert [(p.host_id, p.hop) for p in placed] == [(engine_id(0), 2)] * 2
