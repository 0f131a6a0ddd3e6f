"""Hosts that join, dial again and are lost."""

from domain.commands import EndTry, ForkSandboxes
from domain.events import HostJoined, HostLost, SandboxReady
from domain.ids import node_host_id
from domain.states import End, HostKind, JobState
from scheduler.core.records import SandboxState
from scheduler.core.refusals import RefusalReason
from tests.simulation.plans import plan, pool
from tests.unit.scheduler.core.bench import NODE, Bench, engine_id, held, trainer_id


def test_a_host_of_a_lost_epoch_is_refused() -> None:
    bench = Bench.running()
    bench.lost(engine_id())
    late = HostJoined(engine_id(), 1, HostKind.ENGINE, plan().attempt_id, 8)
    assert bench.refusal(late).reason is RefusalReason.EPOCH
    assert bench.refusal(HostLost(engine_id(), 1, "again")).reason is RefusalReason.EPOCH


def test_a_higher_epoch_means_that_the_lower_one_is_lost() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    bench.engine(plan(), 0, epoch=2)
    assert bench.rollout(0).host is None
    assert bench.core.state.hosts[engine_id()].epoch == 2


def test_a_node_of_a_higher_epoch_ends_the_tries_of_the_lower_one() -> None:
    bench = Bench.running()
    bench.node(epoch=2)
    ended = bench.found(EndTry, bench.last)
    assert {e.end for e in ended} == {End.SANDBOX_LOST}
    assert bench.rollout(0).try_ == 2


def test_a_node_that_dials_again_is_asked_for_what_it_lacks() -> None:
    bench = Bench.running()
    bench.ready(bench.rollout(0))
    have = bench.rollout(1)
    bench.node(held=(held(have),))
    forks = bench.found(ForkSandboxes)
    asked = [member[0] for fork in forks for member in fork.members]
    assert have.rollout_id not in asked
    assert bench.rollout(0).rollout_id not in asked, "it runs on an engine, which will tell"
    assert len(asked) == 6
    assert have.sandbox is SandboxState.READY


def test_a_ready_try_without_a_place_is_forked_again_when_its_node_lacks_it() -> None:
    bench = Bench.running()
    bench.lost(engine_id())
    bench.ready(bench.rollout(0))
    bench.node()
    assert bench.rollout(0).sandbox is SandboxState.ASKED
    asked = [m for fork in bench.found(ForkSandboxes) for m in fork.members]
    assert (bench.rollout(0).rollout_id, 1) in asked


def test_a_sandbox_of_another_node_or_epoch_is_refused() -> None:
    bench = Bench.running()
    rollout = bench.rollout(0)
    for node, epoch in ((node_host_id(7), 1), (NODE, 9)):
        late = SandboxReady(rollout.rollout_id, 1, node, epoch)
        assert bench.refusal(late).reason is RefusalReason.EPOCH


def test_a_trainer_that_dials_again_keeps_its_place() -> None:
    bench = Bench.running()
    bench.trainer(plan())
    trainer = bench.core.state.trainer_of(bench.job())
    assert trainer is not None
    assert (trainer.host_id, trainer.is_ready) == (trainer_id(), True)


def test_held_rollouts_of_unknown_groups_are_ignored() -> None:
    bench = Bench.running()
    foreign = held(bench.rollout(0))
    bench.play(bench.group(0), flat=True)
    bench.engine(plan(), 0, held=(foreign,), version=0)
    bench.node(held=(foreign,))
    assert bench.core.state.hosts[engine_id()].load == 0


def test_a_fork_that_nobody_answers_is_asked_again() -> None:
    bench = Bench.running()
    assert bench.found(ForkSandboxes, bench.tick(1.0)) == []
    forks = bench.found(ForkSandboxes, bench.tick(10.0))
    assert sum(len(fork.members) for fork in forks) == 8


def test_a_node_that_dies_under_many_tries_is_one_failure_of_the_job() -> None:
    job = plan(
        pause_if_failed_share=0.2,
        groups_per_batch=1,
        max_staleness=5,
        async_ratio=9.0,
        max_steps=20,
    )
    bench = Bench.running(job, pool=pool(sandboxes=99))
    for group in list(bench.job().groups.values()):
        for rollout in group.rollouts:
            bench.ready(rollout)
    commands = bench.lost(NODE)
    assert len(bench.found(EndTry, commands)) == 12
    assert bench.job().state is JobState.RUNNING
    assert (len(bench.job().tries), bench.job().failed_tries) == (1, 1)
