"""Each invariant notices what it is there for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from domain.commands import SyncEngine
from domain.ids import node_host_id
from domain.plan import Pool
from domain.states import JobState
from scheduler.core import invariants
from scheduler.core.invariants import InvariantBroken
from scheduler.core.records import GroupPhase, SandboxState
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench, engine_id, gid, policy


def too_many_gangs(bench: Bench) -> None:
    bench.core.state.pool = plan_pool(bench, trainers=0)


def plan_pool(bench: Bench, **changes: Any) -> Pool:
    return replace(bench.core.state.pool, **changes)


def too_many_engines(bench: Bench) -> None:
    bench.core.state.pool = plan_pool(bench, engines=1)


def reserve_taken(bench: Bench) -> None:
    bench.core.state.pool = plan_pool(bench, sandboxes=4)


def lost_count(bench: Bench) -> None:
    bench.job().sandboxes += 1


def wrong_load(bench: Bench) -> None:
    bench.core.state.hosts[engine_id()].load += 1


def wrong_node_load(bench: Bench) -> None:
    bench.core.state.hosts[node_host_id(0)].load -= 1


def on_a_lost_host(bench: Bench) -> None:
    bench.rollout(0).host = engine_id(7)


def queued_with_gang(bench: Bench) -> None:
    bench.job().state = JobState.PAUSED


def running_without_gang(bench: Bench) -> None:
    bench.job().gang = None


def two_positions(bench: Bench) -> None:
    bench.play(bench.group(0))
    bench.job().positions[1] = gid(0)


def position_outside(bench: Bench) -> None:
    bench.play(bench.group(0))
    bench.job().positions = {7: gid(0)}


def wrong_position(bench: Bench) -> None:
    bench.play(bench.group(0))
    bench.group(0).position = 1


def too_stale(bench: Bench) -> None:
    bench.play(bench.group(0))
    bench.group(0).staleness = 9


def hole_in_a_closing_step(bench: Bench) -> None:
    bench.job().is_closing_step = True


def too_many_due(bench: Bench) -> None:
    for ordinal in (0, 1, 2):
        bench.group(ordinal).policy_version = -1


def too_many_alive(bench: Bench) -> None:
    bench.job().plan = plan(max_steps=1)


def too_many_open(bench: Bench) -> None:
    bench.job().plan = plan(async_ratio=1.0)


def closed_with_open_rollouts(bench: Bench) -> None:
    bench.group(0).phase = GroupPhase.CLOSED


def wrong_class(bench: Bench) -> None:
    bench.rollout(0).rank = 0


def ended_and_holding(bench: Bench) -> None:
    bench.rollout(0).is_closing = True


def ready_and_asked(bench: Bench) -> None:
    bench.job().ready[bench.rollout(0).rollout_id] = None


def wanting_and_asked(bench: Bench) -> None:
    bench.job().wanting[bench.rollout(0).rollout_id] = None


def nowhere(bench: Bench) -> None:
    bench.rollout(0).sandbox = SandboxState.READY


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (too_many_gangs, "more gangs than trainers"),
        (too_many_engines, "more engines than the pool has"),
        (reserve_taken, "agents hold the grading reserve"),
        (lost_count, "sandbox count"),
        (wrong_load, "load of host_a_engine0"),
        (wrong_node_load, "load of host_node0"),
        (on_a_lost_host, "on a lost host"),
        (queued_with_gang, "a waiting job holds a gang"),
        (running_without_gang, "a running job holds no gang"),
        (two_positions, "a group is in two positions"),
        (position_outside, "position outside"),
        (wrong_position, "is in another position"),
        (too_stale, "is too stale"),
        (hole_in_a_closing_step, "a step closes with a hole"),
        (too_many_due, "more groups are due than positions are left"),
        (too_many_alive, "too many groups alive"),
        (too_many_open, "too many groups unfinished"),
        (closed_with_open_rollouts, "has open rollouts"),
        (wrong_class, "ranked outside its class"),
        (ended_and_holding, "ended and holds something"),
        (ready_and_asked, "waits for a place"),
        (wanting_and_asked, "wants a sandbox and has one"),
        (nowhere, "is nowhere"),
    ],
)
def test_a_broken_sentence_is_found(break_it: Callable[[Bench], None], sentence: str) -> None:
    bench = Bench.running()
    bench.tick()
    invariants.check(bench.core.state, [])
    break_it(bench)
    with pytest.raises(InvariantBroken, match=sentence):
        invariants.check(bench.core.state, [])


def test_a_command_to_a_superseded_epoch_is_found() -> None:
    bench = Bench.running()
    late = SyncEngine(engine_id(), 0, policy(1))
    with pytest.raises(InvariantBroken, match="names epoch 0"):
        invariants.check(bench.core.state, [late])
