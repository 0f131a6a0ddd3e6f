"""No event takes long: what a bound of one step leaves goes on at the next ones, and nothing is lost."""

from dataclasses import replace

import pytest

from domain.commands import AssignGroup, CloseRollout, CloseStep, DropGroup, EndTry, SetRanks
from domain.ids import node_host_id
from domain.plan import Order
from domain.states import Desired, JobState
from scheduler.core import batches, forks, hosts, lifecycle, order
from tests.simulation.plans import plan, pool
from tests.unit.scheduler.core.bench import Bench, held

WIDE = plan(groups_per_batch=4, async_ratio=2.0, max_staleness=2)


def test_groups_beyond_one_steps_bound_open_at_the_next_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "GRANTS_MAX", 3)
    bench = Bench.running(WIDE)
    assert len(bench.opened()) == 3
    bench.ready(bench.rollout(0))
    assert len(bench.opened()) == 6
    bench.tick()
    assert len(bench.opened()) == 8
    bench.tick()
    assert len(bench.opened()) == 8, "pacing bounds them, not the events"


def test_a_lost_node_ends_its_tries_over_several_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "BEREFT_MAX", 3)
    bench = Bench.running(WIDE, pool=pool(sandboxes=33))
    for group in list(bench.job().groups.values()):
        for rollout in group.rollouts:
            bench.ready(rollout)
    ended = [len(bench.found(EndTry, bench.lost(node_host_id(0))))]
    while bench.core.state.bereft:
        ended.append(len(bench.found(EndTry, bench.tick())))
    assert ended == [6, 6, 4]
    assert len(bench.job().tries) == 1, "one death is one failure"


def test_a_node_that_is_back_before_its_loss_was_folded_in_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "BEREFT_MAX", 1)
    bench = Bench.running(WIDE)
    for group in list(bench.job().groups.values()):
        for rollout in group.rollouts:
            bench.ready(rollout)
    bench.lost(node_host_id(0))
    bench.node(epoch=2)
    assert len(bench.found(EndTry, bench.commands)) == 16
    assert not bench.core.state.bereft


def test_a_cancel_drops_its_groups_over_several_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "GROUPS_ENDED_MAX", 3)
    bench = Bench.running(WIDE)
    dropped = [len(bench.found(DropGroup, bench.desire(Desired.CANCEL)))]
    while bench.core.state.jobs:
        dropped.append(len(bench.found(DropGroup, bench.tick())))
    # Each step looks twice after its job: before it settles its work and after.
    assert sum(dropped) == 8
    assert max(dropped) <= 6
    assert len(bench.found(CloseRollout, bench.commands)) == 16


def test_a_pause_ends_its_tries_over_several_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "GROUPS_ENDED_MAX", 1)
    bench = Bench.running(WIDE)
    for group in list(bench.job().groups.values()):
        for rollout in group.rollouts:
            bench.ready(rollout)
    bench.desire(Desired.PAUSE)
    ended = len(bench.found(EndTry, bench.tick(WIDE.drain_s)))
    assert 0 < ended < 16
    while bench.job().state is not JobState.PAUSED:
        bench.tick()
    assert len(bench.found(EndTry, bench.commands)) == 16


def test_positions_beyond_one_steps_bound_fill_at_the_next_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench.running(WIDE)
    for ordinal in range(8):
        bench.play(bench.group(ordinal))
    monkeypatch.setattr(batches, "ASSIGNED_MAX", 3)
    assert len(bench.found(AssignGroup, bench.commit(1))) == 3
    filled = bench.tick()
    assert len(bench.found(AssignGroup, filled)) == 1
    assert bench.found(CloseStep, filled) == [CloseStep(WIDE.attempt_id, 2)]


def test_a_critical_set_beyond_one_steps_bound_is_whole_after_the_next_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(order, "CRITICAL_MOVES_MAX", 1)
    monkeypatch.setattr(order, "GROUPS_RANKED_MAX", 1)
    bench = Bench.running(WIDE)
    for _ in range(16):
        bench.tick()
    assert not bench.core.state.backlog
    assert sum(group.is_critical for group in bench.job().training_groups()) == 4


def test_an_estimate_that_hardly_changes_sends_no_ranks() -> None:
    job = replace(plan(async_ratio=1.0), order=Order.NEAREST, expected_turns=400)
    bench = Bench.running(job)
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
    first, second = bench.group(0).rollouts
    bench.turn(first, 2)
    assert bench.found(SetRanks, bench.turn(first, 3)) == []
    assert bench.found(SetRanks, bench.turn(second, 1)) == []
    assert bench.found(SetRanks, bench.turn(second, 200)) != []


def test_a_node_that_dials_again_is_asked_for_what_it_did_not_keep() -> None:
    bench = Bench.running(plan(async_ratio=1.0))
    bench.lost(bench.core.state.engines_of(bench.job())[0].host_id)
    for group in list(bench.job().groups.values()):
        for rollout in group.rollouts:
            bench.ready(rollout)
    before = len(bench.forked())
    bench.node(held=(held(bench.rollout(0)), held(bench.rollout(1, 1))))
    asked = [member for fork in bench.forked()[before:] for member in fork.members]
    assert asked == [(bench.rollout(0, 1).rollout_id, 1), (bench.rollout(1).rollout_id, 1)]
