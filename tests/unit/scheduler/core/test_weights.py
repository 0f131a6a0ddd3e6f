"""Syncs, their retries and deadlines, engines that fall behind."""

from domain.commands import PlaceRollout, ReplaceHost, SyncEngine
from domain.events import EngineSyncFailed
from domain.states import HostKind
from scheduler.core import weights
from scheduler.core.records import HostState
from scheduler.core.refusals import RefusalReason
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench, engine_id

JOB = plan(max_steps=9, max_staleness=2, async_ratio=9.0)


def committed(bench: Bench, step: int) -> list[SyncEngine]:
    while len(bench.job().positions) < JOB.groups_per_batch:
        group = next(g for g in bench.job().training_groups() if g.is_unfinished)
        bench.play(group, group.policy_version)
    return bench.found(SyncEngine, bench.commit(step))


def test_every_engine_of_the_attempt_is_synced_after_a_step() -> None:
    bench = Bench.running(JOB, engines=2)
    found = committed(bench, 1)
    assert [(s.host_id, s.policy.version) for s in found] == [(engine_id(0), 1), (engine_id(1), 1)]


def test_one_sync_is_outstanding_and_the_newest_follows() -> None:
    bench = Bench.running(JOB)
    committed(bench, 1)
    assert committed(bench, 2) == []
    found = bench.found(SyncEngine, bench.synced(JOB, 0, 1))
    assert [s.policy.version for s in found] == [2]


def test_an_engine_more_than_one_version_behind_gets_no_new_training_rollout() -> None:
    bench = Bench.running(JOB)
    committed(bench, 1)
    committed(bench, 2)
    group = next(g for g in bench.job().training_groups() if g.is_unfinished)
    assert bench.found(PlaceRollout, bench.ready(group.rollouts[0])) == []
    assert len(bench.found(PlaceRollout, bench.synced(JOB, 0, 1))) == 1


def test_a_failed_sync_is_tried_again_then_the_engine_is_replaced() -> None:
    bench = Bench.running(JOB)
    committed(bench, 1)
    for _ in range(weights.SYNC_FAILURES_MAX - 1):
        commands = bench.feed(EngineSyncFailed(engine_id(), 1, 1, "torn"))
        assert [s.policy.version for s in bench.found(SyncEngine, commands)] == [1]
    commands = bench.feed(EngineSyncFailed(engine_id(), 1, 1, "torn"))
    assert [(r.host_id, r.cause) for r in bench.found(ReplaceHost, commands)] == [
        (engine_id(), "sync_failed: torn")
    ]


def test_a_sync_past_its_deadline_replaces_the_engine_and_is_repeated_until_answered() -> None:
    bench = Bench.running(JOB)
    committed(bench, 1)
    for _ in range(2):
        found = bench.found(ReplaceHost, bench.tick(weights.SYNC_DEADLINE_S + 1))
        assert [r.cause for r in found] == ["sync_deadline"]
    assert bench.core.state.hosts[engine_id()].state is HostState.REPLACING


def test_an_engine_that_is_being_replaced_stays_so_when_it_dials_again() -> None:
    bench = Bench.running(JOB)
    committed(bench, 1)
    bench.tick(weights.SYNC_DEADLINE_S + 1)
    bench.engine(JOB, 0, version=1)
    assert bench.core.state.engines_of(bench.job()) == []


def test_a_repeated_confirmation_is_refused_as_a_duplicate() -> None:
    bench = Bench.running(JOB)
    committed(bench, 1)
    bench.synced(JOB, 0, 1)
    host = bench.core.state.hosts[engine_id()]
    assert (host.kind, host.version) == (HostKind.ENGINE, 1)
    late = EngineSyncFailed(engine_id(), 1, 1, "late")
    assert bench.refusal(late).reason is RefusalReason.DUPLICATE
