"""A stall names its resource; a promoted group that stands still is given up."""

from collections.abc import Callable

import pytest

from domain.commands import DropGroup, NoteJob
from domain.ids import node_host_id
from domain.plan import EvaluationPlan, OnNoSignal
from domain.states import DropReason
from scheduler.core import roster, watchdog
from scheduler.core.holdings import let_go
from tests.simulation.plans import plan, pool
from tests.unit.scheduler.core.bench import Bench, engine_id, trainer_id

JOB = plan(watchdog_s=10.0, max_staleness=2, async_ratio=1.0, max_steps=9)


def stall(bench: Bench, seconds: float = 11.0) -> dict[str, str]:
    notes = bench.found(NoteJob, bench.tick(seconds))
    assert [note.type for note in notes] == ["job.stalled"]
    return dict(notes[0].body)


def no_trainer(bench: Bench) -> None:
    bench.lost(trainer_id())


def no_engine(bench: Bench) -> None:
    bench.lost(engine_id())


def no_node(bench: Bench) -> None:
    bench.lost(node_host_id(0))


def forks_unanswered(bench: Bench) -> None:
    assert bench.job().sandboxes > 0


def silent_rollout(bench: Bench) -> None:
    bench.ready(bench.rollout(0))


def ungraded(bench: Bench) -> None:
    for group in bench.job().groups.values():
        for rollout in group.rollouts:
            bench.ready(rollout)
            bench.close(rollout)


def uncommitted(bench: Bench) -> None:
    for ordinal in (0, 1):
        bench.play(bench.group(ordinal))


@pytest.mark.parametrize(
    ("arrange", "resource"),
    [
        (no_trainer, "trainer"),
        (no_engine, "engine"),
        (no_node, "node"),
        (forks_unanswered, "sandbox_fork"),
        (silent_rollout, "rollout"),
        (ungraded, "grading"),
        (uncommitted, "trainer"),
    ],
)
def test_a_stall_names_the_blocked_resource(
    arrange: Callable[[Bench], None], resource: str
) -> None:
    bench = Bench.running(JOB)
    arrange(bench)
    assert stall(bench)["resource"] == resource
    view = bench.core.view(JOB.job_id)
    assert view is not None
    assert view.blocked == resource


def test_a_provisioning_job_is_watched_too() -> None:
    bench = Bench()
    bench.submit(JOB)
    assert stall(bench)["resource"] == "trainer"


def test_engines_that_lag_are_named_as_weights() -> None:
    bench = Bench.running(JOB)
    for step in (1, 2):
        while len(bench.job().positions) < 2:
            bench.play(next(g for g in bench.job().training_groups() if g.is_unfinished))
        bench.commit(step)
    assert stall(bench)["resource"] == "weights"


def test_rollouts_without_a_fitting_engine_are_named_as_weights() -> None:
    bench = Bench.running(plan(watchdog_s=10.0, evaluation=EvaluationPlan(1, 1, None)))
    state, job = bench.core.state, bench.job()
    for group in list(job.groups.values()):
        for rollout in group.rollouts:
            let_go(state, job, group, rollout)
        roster.remove(state, job, group)
    run_detail = stall(bench)
    assert run_detail["resource"] in ("pacing", "sandbox_fork")


def test_a_wait_for_signal_is_named() -> None:
    bench = Bench.running(plan(watchdog_s=10.0, on_no_signal=OnNoSignal.WAIT, max_staleness=0))
    for _ in range(2):
        bench.play(next(iter(bench.job().groups.values())), flat=True)
    while bench.job().groups:
        bench.play(next(iter(bench.job().groups.values())), flat=True)
        assert bench.job().blocked == "no_signal", "groups that end later do not unsay it"
    assert stall(bench)["resource"] == "no_signal"


def test_scarce_sandboxes_are_named() -> None:
    bench = Bench(pool(trainers=2, sandboxes=5, grading_reserve=1))
    bench.node()
    bench.start(plan("a", engines_max=1, watchdog_s=1e6))
    bench.start(plan("b", engines_max=1, watchdog_s=10.0))
    assert bench.job("b").sandboxes == 0
    assert stall(bench)["resource"] == "sandboxes"


def test_a_stall_is_noted_once_a_bound() -> None:
    bench = Bench.running(JOB)
    stall(bench)
    assert bench.found(NoteJob, bench.tick(5.0)) == []
    assert stall(bench, 6.0)["resource"] == "sandbox_fork"


def test_the_bound_follows_the_jobs_own_history() -> None:
    bench = Bench.running(JOB)
    bench.now = 9.0
    bench.play(bench.group(0))
    assert watchdog.bound_s(bench.job()) == watchdog.WATCHDOG_FACTOR * 9.0
    assert bench.found(NoteJob, bench.tick(11.0)) == []


def test_progress_clears_the_blocked_resource() -> None:
    bench = Bench.running(JOB)
    stall(bench)
    bench.play(bench.group(0))
    assert bench.job().blocked is None


def test_a_promoted_group_without_progress_is_given_up() -> None:
    bench = Bench.running(plan(watchdog_s=10.0, max_staleness=0))
    for rollout in bench.group(0).rollouts:
        bench.ready(rollout)
    commands = bench.tick(11.0)
    dropped = bench.found(DropGroup, commands)
    assert [d.reason for d in dropped] == [DropReason.UNSALVAGEABLE] * 2
    assert len(bench.opened()) == 4, "others take their positions"


def test_a_promoted_group_that_goes_on_is_kept() -> None:
    bench = Bench.running(plan(watchdog_s=10.0, max_staleness=0))
    for group in list(bench.job().groups.values()):
        bench.ready(group.rollouts[0])
    for turn in (1, 2, 3):
        for group in list(bench.job().groups.values()):
            bench.turn(group.rollouts[0], turn)
        assert bench.found(DropGroup, bench.tick(8.0)) == []
